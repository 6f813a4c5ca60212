//! Names that users give: processes by other names than their pid, misspelt functions, and commands
//! of other tools.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use integration::{Fixture, Target};

use crate::scene::{Scene, rows};

#[test]
fn a_process_has_many_names_and_three_ways_to_give_them() -> Result<()> {
    let scene = Scene::new()?;
    let target = Target::spawn(Fixture::Counted, [""; 0])?;
    let cli = scene.alone()?;
    let pid = &*target.pid().to_string();
    let file = scene.path("counted.pid");
    fs::write(&file, format!("{pid}\nmore\n"))?;
    let file = &*format!("@{}", file.display());
    for arguments in [
        &["--pid", pid, "work::"][..],
        &["-p", pid, "work::"],
        &[pid, "work::"],
        &["--pid", file, "work::"],
        &[file, "work::"],
        &[pid],
        &[file],
    ] {
        let listed = cli.json([&["functions"][..], arguments].concat())?;
        let functions = rows(&listed, "functions")?;
        ensure!(!functions.is_empty(), "{arguments:?}: {listed}");
        ensure!(
            functions.iter().all(|row| row["pid"] == target.pid()),
            "{arguments:?}: {listed}"
        );
    }
    for arguments in [&["doctor", pid][..], &["doctor", "--pid", file]] {
        cli.ok(arguments)?;
    }
    Ok(())
}

/// The program is a copy with a name that no other process has. A second process with that name
/// makes it ambiguous, and nothing is done.
#[test]
fn a_name_of_two_processes_lists_them() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let name = format!("twice-{}", std::process::id());
    let program = scene.path(&name);
    integration::copy_program(Path::new("/bin/sleep"), &program)?;
    let mut sleepers = Vec::new();
    let mut start = || -> Result<u32> {
        let child = std::process::Command::new(&program).arg("1000").spawn()?;
        let pid = child.id();
        sleepers.push(child);
        Ok(pid)
    };
    let first = start()?;
    // The only process of that name is found, and has no sleds.
    let only = cli.run(["doctor", &name]);
    let second = start()?;
    let both = cli.run(["record", &name, "-o", "f"]);
    for mut sleeper in sleepers {
        sleeper.kill()?;
        sleeper.wait()?;
    }
    only?.failed(4, &[&format!("process {first} cannot be traced")])?;
    let (first, second) = (first.to_string(), second.to_string());
    let both = both?;
    ensure!(both.code == Some(2), "{both:?}");
    for part in ["2 processes have the name", &first, &second, "1000"] {
        ensure!(both.err.contains(part), "{both:?}");
    }
    ensure!(!scene.path("f").exists());
    cli.run(["doctor", &name])?
        .failed(3, &["no process has the name"])?;
    Ok(())
}

#[test]
fn a_program_in_place_of_a_process_is_refused_with_the_right_command() -> Result<()> {
    let scene = Scene::new()?;
    // A name that no process of the machine has.
    fs::copy("/bin/true", scene.path("not-running"))?;
    let cli = scene.alone()?;
    for name in ["./not-running", "not-running"] {
        let refusal = [
            "./not-running is a program",
            "xrayctl record -- ./not-running",
        ];
        cli.run(["record", name])?.failed(2, &refusal)?;
    }
    cli.run(["record", "@missing.pid"])?
        .failed(1, &["cannot read missing.pid"])
}

#[test]
fn misspelt_functions_get_suggestions() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let pid = target.pid().to_string();
    let meant = ["nothing matched", "did you mean", "work::tokenize"];
    // The process is not attached.
    cli.run(["functions", &pid, "tokenise"])?
        .failed(3, &meant)?;
    cli.run(["record", &pid, "--function", "work::tokenise", "-o", "f"])?
        .failed(3, &meant)?;
    ensure!(!scene.path("f").exists());
    cli.ok(["attach", &pid])?;
    for command in [
        &["enable", "--function", "work::tokenise"][..],
        &["enable", "--function", "work::tokneize", "--dry-run"],
        &["enable", "--glob", "tokenize"],
        &["disable", "--function", "tokenize"],
        &["trigger", "--when", "call(tokenise)", "--do", "exec true"],
        &["watch", &pid, "--function", "work::tokenise"],
    ] {
        cli.run(command)?.failed(3, &meant)?;
    }
    Ok(())
}

#[test]
fn commands_of_other_tools_lead_to_ours() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    for (word, meant) in [("stop", "'detach'"), ("ls", "'ps'"), ("trace", "'record'")] {
        let ran = cli.run([word])?;
        ensure!(ran.code == Some(2) && ran.err.contains(meant), "{ran:?}");
    }
    Ok(())
}
