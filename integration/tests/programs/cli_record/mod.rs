//! `xrayctl record PID`: by itself and through a daemon, with every end of a recording. The tests
//! are in files by subject.

mod attached;
mod ends;
mod killed;
mod lossless;
mod output;
mod selection;

use anyhow::Result;
use integration::Target;

use crate::scene::{Cli, Running, all_on};

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "300"];

/// Records everything. Returns when all functions are on.
fn record(cli: &Cli, target: &Target, more: &[&str]) -> Result<Running> {
    let pid = target.pid().to_string();
    let mut running = cli.start([&["record", &pid, "-o", "f.xtrace"], more].concat())?;
    running.until("everything is on", || all_on(target))?;
    Ok(running)
}
