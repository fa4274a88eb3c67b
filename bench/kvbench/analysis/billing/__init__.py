"""A bill held against what was used: predicted, reported, priced and invoiced, request by request or by window.

Usage against invoice is arithmetic and can dispute a bill; served against reported (`served`) is inference, and its
verdict stays apart.
"""
