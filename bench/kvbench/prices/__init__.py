"""What requests cost: dated price books, and the exact price of a usage report at a moment.

A price is looked up by model, time, currency, service tier, batch and prompt length; where no row says it, the request
is not priced and the reason is given: never 0, never a row of another time. Money is Decimal and exact.
"""
