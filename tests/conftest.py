"""What every test shares."""

import os

from hypothesis import settings

# Times depend on the machine and its other work: no example fails for having been slow. The gate tries few
# examples, the same each time; `make test-slow` many.
settings.register_profile("gate", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("slow", deadline=None, max_examples=300, derandomize="CI" in os.environ)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
