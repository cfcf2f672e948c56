"""The command line: it joins the parts. `cli.py` lists the commands, one module each."""
