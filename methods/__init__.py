"""What differs between methods: one file each, objective and decoding side by side."""
