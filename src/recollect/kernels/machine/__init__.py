"""What deals in addresses and LLVM: compiling, memory by address, vector arithmetic."""
