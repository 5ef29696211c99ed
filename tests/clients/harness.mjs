// Checks of a client: one line each, and the exit status says whether all of them held.

import assert from "node:assert/strict";

/** The error that a promise is rejected with. */
export async function raised(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("an error should have been raised");
}

export async function run(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`  ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`  FAILED  ${name}`);
      console.error(error);
    }
  }
  process.exit(failed ? 1 : 0);
}
