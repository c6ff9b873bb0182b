"""The file that the operators give to spark-submit: `FILE NAME OPTIONS`.

It runs the command `mongodb-cdc NAME OPTIONS`, and writes its exit code into FILE. A program that
is killed, or loses its JVM, writes none. The file has a folder of its own: Python puts a script's
folder first on its path.
"""

import sys
from pathlib import Path

from cdc.cli import main

try:
    main(sys.argv[2:], prog_name="mongodb-cdc")
except SystemExit as ended:
    Path(sys.argv[1]).write_text(str(ended.code or 0))
    raise
