"""Reading data sets from files, one reader for each format."""
