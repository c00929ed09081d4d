# An installed library sets an event while it is imported, as matplotlib's font manager does.
# run: kernbench torchrun {file}
# expect: ^set$

import os
import sys
import tempfile

folder = os.path.join(tempfile.mkdtemp(), "site-packages")
os.makedirs(folder)
with open(os.path.join(folder, "sets_an_event.py"), "w") as file:
    file.write("import threading\nevent = threading.Event()\nevent.set()\n")
sys.path.insert(0, folder)
import sets_an_event

print("set" if sets_an_event.event.is_set() else "not set")
