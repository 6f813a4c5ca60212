//! Programs whose text is not at the mapping of their file, because they have copied it to huge
//! pages.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use integration::{Fixture, Target, cannot_run};
use procfs::process::{MMPermissions, MMapPath, Process};
use xrayd::types::Switch;

use crate::support::{attach, detach, registry, retained, switch, tally};

/// The bytes of text in memory without a file.
fn without_file(target: &Target) -> Result<u64> {
    let maps = Process::new(target.pid())?.maps()?;
    let copied = maps.iter().filter(|map| {
        map.perms.contains(MMPermissions::EXECUTE) && matches!(map.pathname, MMapPath::Anonymous)
    });
    Ok(copied.map(|map| map.address.1 - map.address.0).sum())
}

/// True if the text is on huge pages of its file. EINVAL means that the kernel was built without
/// them, or that the file system has none.
fn collapses(target: &mut Target) -> Result<bool> {
    let answer = target.ask("again", "")?;
    if answer == "not copied: EINVAL" {
        let why = "the kernel has no huge pages for files here";
        cannot_run("text on huge pages of its file", why)?;
        return Ok(false);
    }
    ensure!(answer == "copied", "{answer}");
    Ok(true)
}

/// The tracer finds the text at its place and switches it there, even if it moves meanwhile. No
/// page is copied that was private before (P36).
#[test]
fn text_without_a_file_is_traced() -> Result<()> {
    for (how, pages) in [("part", 2), ("all", 0), ("collapse", 3)] {
        let mut target = Target::spawn(Fixture::HugeText, [how])?;
        let copied = without_file(&target)?;
        ensure!((copied > 0) == (how != "collapse"), "{how}: {copied}");
        if how == "collapse" && !collapses(&mut target)? {
            continue;
        }
        let registry = registry();
        let attached = attach(&registry, &target)?;
        ensure!(
            attached.report.skipped.is_empty(),
            "{how}: {:?}",
            attached.report
        );
        let session = attached.session;
        let report = switch(&session, Switch::On)?;
        ensure!(report.sleds == 6, "{how}: {report:?}");
        ensure!(report.copied_bytes == pages * 4096, "{how}: {report:?}");
        ensure!(target.ask("go", "done")? == "done 5", "{how}");
        // Sleds that are on move with the text.
        target.ask("again", "copied")?;
        ensure!(target.ask("go", "done")? == "done 5", "{how}");
        switch(&session, Switch::Off)?;
        ensure!(target.ask("go", "done")? == "done 5", "{how}");
        switch(&session, Switch::On)?;
        ensure!(target.ask("go", "done")? == "done 5", "{how}");
        let report = detach(&registry, &target)?;
        ensure!(
            report.sleds_off == 6 && report.lost == 0,
            "{how}: {report:?}"
        );
        ensure!(report.text_bytes_compared > 3 * 4096, "{how}: {report:?}");
        let counts = tally(&retained(&session)?)?;
        let names = ["stays", "moves", "stays_too"];
        let expected = names.map(|name| (name.to_owned(), [3, 3, 0]));
        ensure!(counts == BTreeMap::from(expected), "{how}: {counts:?}");
        ensure!(target.ask("go", "done")? == "done 5", "{how}");
    }
    Ok(())
}
