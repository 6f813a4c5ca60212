//! Daemons that are killed at random moments, while programs work and a command is under way.
//!
//! After each kill the next daemon shows each process as it was before the command, or as it is
//! after it. A command that has succeeded is never undone. Exactly the sleds of the functions that
//! are on are on in each process.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, ran_right, sleds_of, soak, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{Cli, Daemon, Scene, ensure_as_compiled, row_of, rows, sleds_on};

/// The functions of the program whose names match `work::p*` are switched apart from the others.
const PART: &str = "work::p*";

/// What a user sees of one attached process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    mode: &'static str,
    max_depth: u64,
    part: bool,
    others: bool,
}

/// A command on all processes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Attach,
    Detach,
    Enable,
    Disable,
    EnablePart,
    DisablePart,
    Mode(&'static str),
    Depth(u64),
    Snapshot,
    Restart,
    /// The daemon is killed while it goes on with the sessions.
    Nothing,
}

const STEPS: [Step; 16] = [
    Step::Attach,
    Step::Attach,
    Step::Enable,
    Step::EnablePart,
    Step::Disable,
    Step::DisablePart,
    Step::Enable,
    Step::Mode("flight"),
    Step::Mode("stream"),
    Step::Mode("profile"),
    Step::Depth(5),
    Step::Depth(0),
    Step::Snapshot,
    Step::Detach,
    Step::Restart,
    Step::Nothing,
];

/// Random numbers. The seed is part of each failure's message.
struct Random(u64);

struct Storm {
    scene: Scene,
    targets: Vec<Target>,
    /// Numbers of sleds of the part's functions, and of the others.
    sleds: [usize; 2],
    functions: [u64; 2],
    shown: Vec<Option<Shown>>,
}

// === impl Random ===

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

// === impl Step ===

impl Step {
    fn arguments(self) -> Vec<&'static str> {
        match self {
            // The next daemon reads what is in the rings before it serves a call.
            Self::Attach => vec!["attach", "--mode", "stream", "--ring-size", "64KiB"],
            Self::Detach => vec!["detach", "--all"],
            Self::Enable => vec!["enable", "--all"],
            Self::Disable => vec!["disable", "--all"],
            Self::EnablePart => vec!["enable", "--glob", PART],
            Self::DisablePart => vec!["disable", "--glob", PART],
            Self::Mode(mode) => vec!["mode", mode],
            Self::Depth(0) => vec!["filter", "--clear"],
            Self::Depth(_) => vec!["filter", "--max-depth", "5"],
            Self::Snapshot => vec!["snapshot", "-o", "all.xtrace", "--force"],
            Self::Restart | Self::Nothing => vec![],
        }
    }

    fn applied_to(self, shown: Option<Shown>) -> Option<Shown> {
        let new = Shown {
            mode: "stream",
            max_depth: 0,
            part: false,
            others: false,
        };
        match (self, shown) {
            (Self::Attach, None) => Some(new),
            (Self::Detach, _) | (_, None) => None,
            (Self::Attach | Self::Snapshot | Self::Restart | Self::Nothing, shown) => shown,
            (Self::Enable | Self::Disable, Some(shown)) => {
                let on = matches!(self, Self::Enable);
                let (part, others) = (on, on);
                Some(Shown {
                    part,
                    others,
                    ..shown
                })
            }
            (Self::EnablePart, Some(shown)) => Some(Shown {
                part: true,
                ..shown
            }),
            (Self::DisablePart, Some(shown)) => Some(Shown {
                part: false,
                ..shown
            }),
            (Self::Mode(mode), Some(shown)) => Some(Shown { mode, ..shown }),
            (Self::Depth(max_depth), Some(shown)) => Some(Shown { max_depth, ..shown }),
        }
    }
}

// === impl Storm ===

impl Storm {
    fn new(processes: usize) -> Result<Self> {
        let scene = Scene::new()?;
        let mut targets = Vec::new();
        for _ in 0..processes {
            let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "0"])?;
            // Its threads inherit this. Otherwise so many programs leave the daemon no processor.
            let mut renice = Command::new("renice");
            renice.args(["-n", "19", "-p", &target.pid().to_string()]);
            ensure!(renice.output()?.status.success());
            target.send("go")?;
            targets.push(target);
        }
        let first = targets.first().context("no process")?;
        let listed = scene.alone()?;
        let listed = listed.json(["functions", "--pid", &first.pid().to_string()])?;
        let (mut sleds, mut functions) = ([0, 0], [0, 0]);
        for row in rows(&listed, "functions")? {
            let is_part = row["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("work::p"));
            let which = usize::from(!is_part);
            functions[which] += 1;
            sleds[which] += usize::try_from(row["sleds"].as_u64().context("no sleds")?)?;
        }
        ensure!(functions.iter().all(|count| *count > 0), "{listed}");
        ensure!(sleds[0] + sleds[1] == sleds_of(first.program())?.len());
        Ok(Self {
            scene,
            shown: vec![None; targets.len()],
            targets,
            sleds,
            functions,
        })
    }

    fn daemon(&self) -> Result<Daemon> {
        let state = self.scene.path("state");
        let state = state.to_str().context("no text")?;
        self.scene.daemon_with(&["--state-dir", state])
    }

    fn pids(&self) -> Vec<String> {
        self.targets
            .iter()
            .map(|target| target.pid().to_string())
            .collect()
    }

    /// Lets a command begin, and kills the daemon after a while. Returns the command if it has
    /// not succeeded by then.
    fn kill_in(&self, step: Step, daemon: Daemon, cli: &Cli, pause: Duration) -> Result<bool> {
        let mut arguments: Vec<String> = step.arguments().into_iter().map(str::to_owned).collect();
        if matches!(step, Step::Attach) {
            arguments.extend(self.pids());
        }
        if matches!(step, Step::Restart) {
            daemon.signal(Signal::SIGHUP)?;
        }
        let running = match arguments.as_slice() {
            [] => None,
            arguments => Some(cli.start(arguments)?),
        };
        std::thread::sleep(pause);
        daemon.kill()?;
        let ran = running.map(crate::scene::Running::wait).transpose()?;
        Ok(ran.is_some_and(|ran| ran.code == Some(0)))
    }

    /// Runs a command to its end.
    fn finish(&mut self, step: Step, cli: &Cli) -> Result<()> {
        let mut arguments: Vec<String> = step.arguments().into_iter().map(str::to_owned).collect();
        if matches!(step, Step::Attach) {
            arguments.extend(self.pids());
        }
        cli.ok(arguments)?;
        for shown in &mut self.shown {
            *shown = step.applied_to(*shown);
        }
        Ok(())
    }

    /// Compares what the next daemon shows.
    fn check(&mut self, step: Step, succeeded: bool, cli: &Cli) -> Result<()> {
        let status = cli.json(["status"])?;
        for index in 0..self.targets.len() {
            let target = &self.targets[index];
            let was = self.shown[index];
            let new = step.applied_to(was);
            let row = row_of(&status, target.pid())?;
            let sleds = sleds_on(target)?;
            let fits = |shown: &Option<Shown>| match (shown, row) {
                (None, None) => sleds == 0,
                (Some(shown), Some(row)) => {
                    let on = [shown.part, shown.others];
                    let sum = |numbers: [u64; 2]| {
                        let numbers = numbers.into_iter().zip(on);
                        numbers
                            .map(|(number, on)| number * u64::from(on))
                            .sum::<u64>()
                    };
                    let expected = sum(self.sleds.map(|sleds| sleds as u64));
                    row["mode"] == shown.mode
                        && row["filter"]["max_depth"] == shown.max_depth
                        && row["functions_on"] == sum(self.functions)
                        && sleds as u64 == expected
                }
                _ => false,
            };
            let allowed = match succeeded {
                true => vec![new],
                false => vec![was, new],
            };
            let found = allowed.iter().find(|shown| fits(shown));
            self.shown[index] = *found.with_context(|| {
                let pid = target.pid();
                format!("process {pid}: {sleds} sleds are on, none of {allowed:?}: {row:?}")
            })?;
        }
        Ok(())
    }
}

/// Waits until the daemon has gone on with all sessions. It answers its first call 20 s after its
/// start at the latest. On a machine that is busy with other work, a session may take longer: a
/// claim to a process that took too long to write is tried again ten seconds later.
fn recovered(daemon: &Daemon, cli: &Cli) -> Result<()> {
    cli.ok(["status"])?;
    if daemon.log().contains("are still to go on") {
        wait_until(4 * DEADLINE, "the daemon goes on with all sessions", || {
            Ok(daemon
                .log()
                .contains("went on with the sessions")
                .then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_kill_at_any_moment_leaves_each_process_as_it_was_or_as_it_was_to_be() -> Result<()> {
    let (processes, kills) = soak((3, 24), (50, 1000));
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let seed = u64::try_from(seed & u128::from(u64::MAX))?;
    let mut random = Random(seed);
    let mut storm = Storm::new(processes)?;
    let mut steps = Vec::new();
    let (mut cut_off, mut complete) = (0, 0);
    for kill in 0..kills {
        let daemon = storm.daemon()?;
        let cli = storm.scene.with(&daemon)?;
        // Most commands meet processes that are attached to.
        if storm.shown.contains(&None) && random.below(3) != 0 {
            storm.finish(Step::Attach, &cli)?;
            storm.finish(Step::Enable, &cli)?;
        }
        let step = STEPS[usize::try_from(random.below(STEPS.len() as u64))?];
        // Most commands come once the daemon has gone on with the sessions.
        if !matches!(step, Step::Nothing) && random.below(4) != 0 {
            cli.ok(["status"])?;
        }
        // A command takes some milliseconds to begin, and an attach tens of them to end.
        let bound = 1 << (13 + random.below(6));
        let pause = Duration::from_micros(4000 + random.below(bound));
        steps.push((step, pause));
        let context = |storm: &Storm| {
            let log = std::fs::read_to_string(storm.scene.path("xrayd.log")).unwrap_or_default();
            format!("seed {seed}, kill {kill}, steps {steps:?}; {log}")
        };
        let succeeded = storm
            .kill_in(step, daemon, &cli, pause)
            .with_context(|| context(&storm))?;
        let next = storm.daemon()?;
        let cli = storm.scene.with(&next)?;
        recovered(&next, &cli).with_context(|| context(&storm))?;
        let checked = storm.check(step, succeeded, &cli);
        checked.with_context(|| context(&storm))?;
        next.kill()?;
        if kill % 50 == 49 {
            println!("{} kills", kill + 1);
        }
        *match succeeded {
            true => &mut complete,
            false => &mut cut_off,
        } += 1;
    }
    println!("seed {seed}: {complete} commands succeeded, {cut_off} did not");
    let daemon = storm.daemon()?;
    storm.scene.with(&daemon)?.ok(["detach", "--all"])?;
    let mut truths = Vec::new();
    for target in &mut storm.targets {
        ensure_as_compiled(target)?;
        truths.push(GroundTruth::parse(&target.ask("stop", "result ")?)?);
    }
    // Each takes as long as the program ran.
    for truth in truths.iter().take(soak(1, 5)) {
        ran_right(truth, 1)?;
    }
    Ok(())
}
