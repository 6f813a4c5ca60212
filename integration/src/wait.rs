//! Waiting for a condition, never for luck.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a test waits for something that normally takes milliseconds. This ends a test that hangs,
/// and decides nothing else: beside ten busy threads, thirty attaches of an unoptimized build take
/// more than a minute.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Asks `condition` until it gives a value; after `deadline` an error says `what` did not happen.
///
/// # Errors
/// When the condition itself fails, or the deadline has passed.
pub fn wait_until<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("not within {deadline:?}: {what}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
