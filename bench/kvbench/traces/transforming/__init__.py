"""Make a trace of others: parts of them, several at once, copies that share nothing they would not share."""
