"""Kill a whole portal's processes at random, and see by what its jobs did whether its promises hold."""
