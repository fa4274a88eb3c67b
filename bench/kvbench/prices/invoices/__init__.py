"""Invoices and usage exports as lines of tokens and charges of money, each with the place it was read from.

Pure: a file in, an Invoice out. What a row cannot be read as is named and counted (`Invoice.bad`), never guessed; a
file of which no row can be read is an error. Which shapes were seen in a genuine file is said by `Invoice.shape`.
"""
