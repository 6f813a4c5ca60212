//! The actions of a firing, and their order.

use std::fs;

use anyhow::{Result, ensure};

use super::{Stage, Told, calls_of};
use crate::scene::rows;
use crate::trace::read;

/// The daemon enables and disables functions for good. Commands run on the client's side, when the
/// snapshot is complete.
#[test]
fn actions_are_done_in_their_order() -> Result<()> {
    let mut stage = Stage::new("1")?;
    let command = r#"exec echo "$XRAY_NUMBER $XRAY_WHEN $XRAY_PID $XRAY_FUNCTION $XRAY_FILE" > told; test -s "$XRAY_FILE""#;
    let actions = [
        "--do",
        command,
        "--do",
        "snapshot",
        "--do",
        "enable t?ck",
        "--do",
        "disable slow",
    ];
    let when = [
        "--when",
        "call(quick)",
        "-o",
        "shot.xtrace",
        "--after",
        "50ms",
    ];
    stage.cli.ok(["enable", "--function", "slow"])?;
    let running = stage.trigger(&[&when[..], &actions].concat())?;
    stage.target.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    let order: Vec<&str> = reported
        .0
        .iter()
        .filter_map(|reported| reported["event"].as_str())
        .collect();
    ensure!(
        order
            == [
                "armed", "fired", "switched", "switched", "snapshot", "command", "over"
            ],
        "{reported:?}"
    );
    for (switched, action) in reported
        .all("switched")
        .iter()
        .zip(["enable t?ck", "disable slow"])
    {
        let its = switched["action"] == action && switched["changed"] == 1;
        ensure!(its && switched["pid"] == stage.target.pid(), "{switched}");
    }
    ensure!(
        reported.one("command")?["ended"] == "exit status: 0",
        "{reported:?}"
    );
    let expected = format!("1 call(quick) {} quick shot.xtrace\n", stage.pid);
    ensure!(fs::read_to_string(stage.path("told"))? == expected);
    // The function was on when the snapshot ended.
    ensure!(!calls_of(&read(&stage.path("shot.xtrace"))?, "tick")?.is_empty());
    let functions = stage.cli.json(["functions", "--pid", &stage.pid])?;
    for row in rows(&functions, "functions")? {
        ensure!((row["enabled"] == true) == (row["name"] == "tick"), "{row}");
    }
    Ok(())
}
