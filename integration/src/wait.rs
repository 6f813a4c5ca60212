//! Waiting for a condition with a deadline, never for luck.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The longest wait of a test for something that normally takes milliseconds. It ends a test that
/// hangs, and decides nothing else: beside ten busy threads, thirty attaches of an unoptimized
/// build take more than a minute.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Calls `condition` until it returns a value. After `deadline` an error names `what` did not
/// happen.
///
/// # Errors
/// The condition itself fails, or the deadline has passed.
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
