"""What a report shows and is no finding: settings in force, compiling, the context of fixes."""
