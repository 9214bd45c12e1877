"""What a report shows besides findings: settings in force, compiling, the context of fixes."""
