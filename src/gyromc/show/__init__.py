"""Everything that is shown or written: tables, progress, interruption, files, pages."""
