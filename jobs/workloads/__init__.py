"""The built-in workloads, one module or package each; ``protocol`` defines their interface."""
