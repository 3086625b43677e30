"""How many tokens can a language model commit per forward pass, and at what cost in quality?"""
