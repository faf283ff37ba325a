"""What every test shares."""

import os

from hypothesis import settings

# Times depend on the machine and its other work: no example fails for having been slow. Where a change is
# judged, its examples are the same each time; elsewhere every run tries new ones.
settings.register_profile("steady", deadline=None, derandomize="SAME_EXAMPLES" in os.environ)
settings.load_profile("steady")
