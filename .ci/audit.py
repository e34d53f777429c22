"""Asks pip-audit about locked packages: fails where one has a known weakness, and counts those nobody could tell of.

What lies behind a mirror, or behind nothing at all, cannot be asked about: that is told, and is no failure.
"""

import json
import subprocess
import sys


def main(locks: list[str]) -> int:
    found = 0
    for lock in locks:
        # All of it is in the lock, so nothing has to be resolved or fetched.
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--timeout=10", "--format=json"]
        result = subprocess.run([*command, "-r", lock], capture_output=True, text=True, check=False)
        try:
            packages = json.loads(result.stdout)["dependencies"]
        except ValueError:
            reason = (result.stderr.strip().splitlines() or ["no answer"])[-1]
            print(f"{lock}: NOT audited: {reason[:200]}")
            continue
        weak = [package for package in packages if package.get("vulns")]
        skipped = sum("skip_reason" in package for package in packages)
        print(
            f"{lock}: {len(packages)} packages, {len(weak)} with known weaknesses, {skipped} NOT audited (not reached)."
        )
        for package in weak:
            for vulnerability in package["vulns"]:
                fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
                print(f"  {package['name']} {package['version']}: {vulnerability['id']}, mended in {fixed}")
        found += len(weak)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
