//! First arguments, where the sled records them.

use anyhow::{Result, ensure};
use integration::{Fixture, Target};
use xray_trace::model::{CallKind, EventBody};
use xrayd::session::Switch;

use crate::support::{attach, detach, registry, retained, switch, tally};

#[test]
fn arguments_are_those_that_were_passed() -> Result<()> {
    for fixture in [Fixture::Arg1, Fixture::Static] {
        let mut target = Target::spawn(fixture, ["--calls", "1000"])?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("go", "done ")?;
        detach(&registry, &target)?;
        let trace = retained(&session)?;
        let (mut logged, mut tail) = (Vec::new(), Vec::new());
        for block in trace.blocks() {
            for event in block.events() {
                let EventBody::Call {
                    function,
                    kind: CallKind::Enter,
                    arg,
                } = event?.body
                else {
                    continue;
                };
                match (&*trace.function_name(function), arg) {
                    ("logged", Some(value)) => logged.push(value),
                    ("logged_tail", Some(value)) => tail.push(value),
                    ("plain", None) => {}
                    other => anyhow::bail!("{other:?}"),
                }
            }
        }
        let mut passed: Vec<u64> = (0..1000).collect();
        passed.extend([u64::MAX, 1 << 63, u64::from(u32::MAX), 1 << 32, 0, 42]);
        ensure!(logged == passed, "{fixture:?}: {logged:x?}");
        ensure!(tail == [41], "{tail:?}");
        let counts = tally(&trace)?;
        ensure!(counts["logged"] == [1006, 1006, 0], "{counts:?}");
        ensure!(counts["logged_tail"] == [1, 0, 1] && counts["plain"] == [1, 1, 0]);
    }
    Ok(())
}
