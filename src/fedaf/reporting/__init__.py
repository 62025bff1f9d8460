"""What people look at: progress, tables and pictures. Reports are made from run directories alone."""
