//! A policy for twenty instances of a service: what becomes of each instance, and of its requests,
//! is in the recordings, or it is told why not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, build, workspace_dir};
use serde_json::Value;

use crate::container;

/// What an instance says of itself.
#[derive(Debug, Clone, Copy)]
struct Instance {
    begun_ms: u64,
    until_ms: u64,
    handled: u64,
    slow: u64,
    /// True if this is its last word.
    has_ended: bool,
}

#[test]
#[ignore = "boots systemd as root; `cargo xtask test --systemd` runs it"]
fn recordings_account_for_every_instance() -> Result<()> {
    let container = container()?;
    for (fixture, name) in [
        (Fixture::Service, "service"),
        (Fixture::ServiceNext, "service_next"),
        (Fixture::Demo, "market"),
    ] {
        container.copy(&build(fixture)?, &format!("xrayd-test/{name}"))?;
    }
    let passed = container.run(&workspace_dir().join("integration/systemd/standing.sh"))?;
    ensure!(passed > 20, "only {passed} checks");
    let folder = container.path("xrayd-test/standing");
    let recordings = Recordings::read(&folder)?;
    let instances = instances(&folder.join("log"))?;
    ensure!(instances.len() >= 30, "{} instances", instances.len());
    let mut wrong = Vec::new();
    for (pid, instance) in &instances {
        if let Err(error) = recordings.account_for(*pid, *instance) {
            wrong.push(format!("process {pid}: {error:#}: {instance:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    recordings.account_for_slow_requests(&instances)
}

/// The state of each instance, by pid.
fn instances(folder: &Path) -> Result<BTreeMap<u32, Instance>> {
    let mut instances = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        let [pid, begun_ms, until_ms, handled, slow, ended] = numbers[..] else {
            // The next state of an instance that was killed.
            continue;
        };
        let instance = Instance {
            begun_ms,
            until_ms,
            handled,
            slow,
            has_ended: ended == 1,
        };
        instances.insert(u32::try_from(pid)?, instance);
    }
    Ok(instances)
}

/// What the relay has written.
struct Recordings {
    root: PathBuf,
    files: Vec<Value>,
    losses: Vec<Value>,
    firings: Vec<Value>,
}

impl Recordings {
    fn read(root: &Path) -> Result<Self> {
        let list = |what: &str, more: &[&str]| -> Result<Vec<Value>> {
            let mut command = xrayctl()?;
            command.args(["recordings", what, "--json", "--folder"]);
            let mut listed = json(command.arg(root).args(more))?;
            let key = if what == "list" { "recordings" } else { what };
            let rows = listed[key].take();
            Ok(rows.as_array().context("no rows")?.clone())
        };
        Ok(Self {
            root: root.to_owned(),
            files: list("list", &[])?,
            losses: list("losses", &["--begins"])?,
            firings: list("firings", &[])?,
        })
    }

    /// The whole files of a process that are no snapshots.
    fn profiles(&self, pid: u32) -> Vec<PathBuf> {
        let its = self.files.iter().filter(|file| file["pid"] == pid);
        let names = its.filter_map(|file| file["name"].as_str());
        let profiles = names.filter(|name| !name.contains("-trigger"));
        profiles.map(|name| self.root.join(name)).collect()
    }

    /// The time for which a process was not recorded, as the relay tells it, in milliseconds.
    fn lost_ms(&self, pid: u32) -> u64 {
        let its = self.losses.iter().filter(|loss| loss["pid"] == pid);
        its.map(|loss| {
            let number = |key: &str| loss[key].as_u64().unwrap_or(0);
            number("until_ms").saturating_sub(number("since_ms"))
        })
        .sum()
    }

    /// Checks that the requests of an instance are in its files, but for those of times that the
    /// relay tells, and none twice.
    fn account_for(&self, pid: u32, instance: Instance) -> Result<()> {
        let begins = self.losses.iter().filter(|loss| loss["pid"] == pid);
        let begins = begins.filter(|loss| loss["is_begin"] == true).count();
        ensure!(begins == 1, "its begin is told {begins} times");
        let files = self.profiles(pid);
        ensure!(!files.is_empty(), "there are no files");
        let mut command = xrayctl()?;
        command.arg("account").args(&files);
        let account = json(command.args(["--format", "json", "--top", "0"]))?;
        let rows = account["rows"].as_array().context("no functions")?;
        let mut names = rows.iter().filter(|row| {
            row["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("checkout::handle("))
        });
        let handle = names.next().context("no requests")?;
        let recorded = handle["calls"].as_u64().context("no calls")?;
        let trace = &account["trace"];
        let lost = trace["lost"].as_u64().unwrap_or(0);
        let lived_ms = instance.until_ms.saturating_sub(instance.begun_ms).max(1);
        // Requests are made evenly. A state that is not the last one is 0.1 s old, or older on a
        // busy machine; and the policy ended before some of the instances.
        let rate = instance.handled as f64 / lived_ms as f64;
        let untold = instance.handled.saturating_sub(recorded) as f64;
        let told = rate * self.lost_ms(pid) as f64 * 1.5 + lost as f64 + 100.0;
        if instance.has_ended && self.outlive(instance) {
            ensure!(
                recorded <= instance.handled,
                "{recorded} of {} requests are recorded",
                instance.handled
            );
            ensure!(
                untold <= told,
                "{recorded} of {} requests are recorded, {lost} events are lost, and {} ms are \
                 told as lost",
                instance.handled,
                self.lost_ms(pid)
            );
        }
        Ok(())
    }

    /// True if files were written seconds after the end of the instance: the policy was in force
    /// until then.
    fn outlive(&self, instance: Instance) -> bool {
        let written = self.files.iter();
        let written = written.filter_map(|file| file["written_s"].as_u64());
        written
            .max()
            .is_some_and(|last| instance.until_ms / 1000 + 3 < last)
    }

    /// Checks that each firing is a slow request of an instance, and that most slow requests have a
    /// file.
    fn account_for_slow_requests(&self, instances: &BTreeMap<u32, Instance>) -> Result<()> {
        let mut fired = BTreeMap::<u32, u64>::new();
        let mut without = Vec::new();
        let mut names = BTreeSet::new();
        for firing in &self.firings {
            let pid = firing["pid"].as_u64().context("no pid")?;
            if pid == 0 {
                continue;
            }
            *fired.entry(u32::try_from(pid)?).or_default() += 1;
            match firing["recording"].as_str() {
                Some(name) => {
                    ensure!(names.insert(name), "two firings have {name}");
                    ensure!(self.root.join(name).is_file(), "{name} is not there");
                }
                None => without.push(firing["why"].as_str().unwrap_or("").to_owned()),
            }
        }
        for (pid, count) in &fired {
            let slow = instances.get(pid).map_or(0, |instance| instance.slow);
            // A request may have ended after the last state.
            ensure!(
                *count <= slow + 1,
                "{count} firings of {pid}, with {slow} slow requests"
            );
        }
        let slow: u64 = instances.values().map(|instance| instance.slow).sum();
        let count: u64 = fired.values().sum();
        let limits: u64 = self
            .firings
            .iter()
            .filter_map(|firing| firing["skipped"].as_u64())
            .sum();
        // Twenty instances are slow every five seconds. Daemon and relay were killed meanwhile.
        let untold = slow.saturating_sub(count + limits) as f64;
        let told = self.lost_ms(0) as f64 / 5000.0 * 20.0 * 1.5 + 20.0;
        ensure!(
            untold <= told,
            "of {slow} slow requests, {count} have fired, and {limits} were beyond the limit; for {} \
             ms nobody waited",
            self.lost_ms(0)
        );
        let known = ["disk", "file", "the daemon", "the relay"];
        let is_known = |why: &&String| known.iter().any(|known| why.contains(known));
        ensure!(without.iter().all(|why| is_known(&why)), "{without:?}");
        Ok(())
    }
}

fn xrayctl() -> Result<Command> {
    Ok(Command::new(integration::xrayctl()?))
}

fn json(command: &mut Command) -> Result<Value> {
    let ran = command.output()?;
    ensure!(
        ran.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(serde_json::from_slice(&ran.stdout)?)
}
