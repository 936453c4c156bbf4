"""The built-in workloads, one module or package each; ``protocol`` says what all of them offer."""
