//! Libraries that are loaded and unloaded while their process is traced.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, build, copy_into, not_run, wait_until};
use xray_trace::instr_map::{Rule, Selection};
use xray_trace::model::{CallKind, EventBody, Trace};
use xrayd::{
    Reason,
    process::{AttachOptions, Session},
    store::TracedProcess as _,
    target::Sleds,
    types::{Detection, ModuleStatus, Run, Switch},
};

use crate::{
    support::{attach, detach, everything, pid_of, registry, retained, soak, switch, tally},
    tracer::Tracer,
};

fn glob(pattern: &str) -> Selection {
    Selection {
        include: vec![Rule::Glob(pattern.to_owned())],
        exclude: Vec::new(),
    }
}

fn modules(session: &Session, file: &str) -> Vec<ModuleStatus> {
    let named = |module: &ModuleStatus| Path::new(&module.path).ends_with(file);
    let modules = session.status().modules.into_iter();
    modules.filter(named).collect()
}

/// Waits until this many functions of `file`, which is loaded once, are on.
fn armed(session: &Session, file: &str, functions: u32) -> Result<ModuleStatus> {
    wait_until(DEADLINE, "the library is armed", || {
        let on = |module: &ModuleStatus| module.armed.is_some() && module.functions_on == functions;
        Ok(modules(session, file).into_iter().find(on))
    })
}

fn unloaded(session: &Session, file: &str) -> Result<()> {
    wait_until(DEADLINE, "the library is gone", || {
        Ok(modules(session, file).is_empty().then_some(()))
    })
}

/// A selection is a rule, not a list of functions (P63).
#[test]
fn a_rule_holds_for_a_library_that_is_loaded_later() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let report = session.toggle(&glob("plugin_*"), Switch::On, Run::Real)?;
    ensure!(report.matched == 0, "{report:?}");
    session.toggle(&glob("plugin_*_noise"), Switch::Off, Run::Real)?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    let module = armed(&session, "plugin_a.so", 2)?;
    ensure!(module.functions == 3, "{module:?}");
    ensure!(
        module.build_id.is_some() && module.refusal.is_none(),
        "{module:?}"
    );
    ensure!(module.copied_bytes == 4096, "{module:?}");
    ensure!(module.armed.is_some(), "{module:?}");
    // The pages that would become private, too, are the host's.
    let dry = session.toggle(&everything(), Switch::On, Run::Dry)?;
    let [(path, bytes)] = dry.copied_by_module.as_slice() else {
        anyhow::bail!("{dry:?}");
    };
    ensure!(
        path.ends_with("plugins") && *bytes == dry.copied_bytes,
        "{dry:?}"
    );
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    // The loaded functions are listed, and can be switched like all others.
    let report = session.toggle(&glob("plugin_a_noise"), Switch::On, Run::Real)?;
    ensure!((report.matched, report.changed) == (1, 1), "{report:?}");
    ensure!(target.ask("call 0 5", "done")? == "done 5");
    wait_until(DEADLINE, "all that was called is listed", || {
        let listed = session.functions(Some(&glob("plugin_*")))?;
        ensure!(listed.len() == 3 && listed.iter().all(|row| row.enabled));
        Ok(listed.iter().all(|row| row.calls > 0).then_some(()))
    })?;

    // Without a rule that matches it, the library is found and stays off.
    session.toggle(&everything(), Switch::Off, Run::Real)?;
    target.ask("load 1 plugin_b.so", "loaded")?;
    ensure!(session.functions(Some(&glob("plugin_b*")))?.len() == 3);
    ensure!(target.ask("call 1 50", "done")? == "done 50");
    ensure!(modules(&session, "plugin_b.so")[0].functions_on == 0);
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let counts = tally(&retained(&session)?)?;
    let expected = [
        ("plugin_a_call", 55),
        ("plugin_a_inner", 55),
        ("plugin_a_noise", 5),
    ];
    let expected = expected.map(|(name, calls)| (name.to_owned(), [calls, calls, 0]));
    ensure!(counts == BTreeMap::from(expected), "{counts:?}");
    Ok(())
}

/// A rule holds for a library that was unloaded and is back when the rule is set. The library has
/// its old ids, and the tracer has not looked since (P63).
#[test]
fn a_rule_holds_for_a_library_that_has_just_come_back() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    // The tracer may find the library by chance before the rule is set. Without a rule it looks
    // once a second.
    for round in 0..10 {
        target.ask("load 0 plugin_a.so", "loaded")?;
        session.functions(None)?;
        ensure!(modules(&session, "plugin_a.so").len() == 1);
        target.ask("unload 0", "unloaded")?;
        session.functions(None)?;
        ensure!(modules(&session, "plugin_a.so").is_empty());
        target.ask("load 0 plugin_a.so", "loaded")?;
        let report = session.toggle(&glob("plugin_*"), Switch::On, Run::Real)?;
        ensure!(report.matched == 3, "{round}: {report:?}");
        ensure!(modules(&session, "plugin_a.so")[0].functions_on == 3);
        session.toggle(&everything(), Switch::Off, Run::Real)?;
        target.ask("unload 0", "unloaded")?;
        session.functions(None)?;
    }
    detach(&registry, &target)?;
    target.still_running()
}

/// The kernel's events report a library if they are available, else a look at the maps finds it.
/// The status has the method and the delay (P63).
#[test]
fn a_library_is_noticed_with_perf_events_and_without() -> Result<()> {
    // If the host maps faster than a starved controller reads, the kernel's records get lost,
    // and a look finds the library.
    let by_word = (0..20).find_map(|_| {
        let armed = Tracer::spawn().and_then(|tracer| armed_by(tracer, "Perf"));
        let by_word = |armed: &Vec<String>| armed.iter().all(|armed| armed.starts_with("Mapping "));
        match armed {
            Ok(Some(armed)) if !by_word(&armed) => None,
            answer => Some(answer),
        }
    });
    let by_word = by_word.context("the kernel's word was never heard")??;
    if by_word.is_none() {
        not_run(
            "detection libraries by the kernel's word",
            "it needs perf events",
        )?;
    }
    let mut filtered = Command::new(build(Fixture::Confined)?);
    filtered.args(["--filter", "no-perf", "--exec"]);
    let by_look =
        armed_by(Tracer::spawn_under(filtered)?, "Maps")?.context("maps are open to all")?;
    ensure!(
        by_look.iter().all(|armed| armed.starts_with("Look ")),
        "{by_look:?}"
    );
    Ok(())
}

/// The reports on two new libraries: one comes in a thread that existed when watching began, and
/// one in another thread. `None` if this method is not in use.
fn armed_by(mut tracer: Tracer, detection: &str) -> Result<Option<Vec<String>>> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    tracer.ask(&format!("attach {}", target.pid()))?;
    ensure!(tracer.ask("detection")? == "Idle");
    tracer.ask("on")?;
    if !tracer.ask("detection")?.starts_with(detection) {
        return Ok(None);
    }
    let mut all = Vec::new();
    for (slot, (load, file)) in [("load", "plugin_a.so"), ("apart", "plugin_b.so")]
        .iter()
        .enumerate()
    {
        target.ask(&format!("{load} {slot} {file}"), "loaded")?;
        all.push(wait_until(DEADLINE, "the library is armed", || {
            let armed = tracer.ask(&format!("armed {file}"))?;
            Ok((!armed.is_empty()).then_some(armed))
        })?);
        ensure!(target.ask(&format!("call {slot} 5"), "done")? == "done 5");
    }
    tracer.ask("off")?;
    wait_until(DEADLINE, "nothing is watched any more", || {
        Ok((tracer.ask("detection")? == "Idle").then_some(()))
    })?;
    tracer.ask("detach")?;
    let counts = tally(&tracer.trace()?)?;
    for name in ["plugin_a_call", "plugin_b_call"] {
        ensure!(counts[name] == [5, 5, 0], "{detection}: {counts:?}");
    }
    Ok(Some(all))
}

/// A program without a sled, whose libraries are awaited. The second attach finds the memory of the
/// first.
#[test]
fn a_program_without_sleds_is_attached_to_for_its_libraries() -> Result<()> {
    let host = build(Fixture::Plugins)?.with_file_name("bare_host");
    let mut target = Target::spawn_command(Command::new(host))?;
    let registry = registry();
    let pid = pid_of(&target)?;
    let refused = registry.attach(pid, AttachOptions::default());
    let refused = refused.err().context("attached")?;
    ensure!(refused.reason == Reason::NoSleds, "{refused}");
    let options = AttachOptions {
        sleds: Sleds::Awaited,
        ..AttachOptions::default()
    };
    for adopted in [false, true] {
        let attached = registry.attach(pid, options.clone())?;
        ensure!(attached.report.adopted == adopted, "{:?}", attached.report);
        let session = attached.session;
        session.toggle(&glob("plugin_*"), Switch::On, Run::Real)?;
        target.ask("load 0 plugin_a.so", "loaded")?;
        armed(&session, "plugin_a.so", 3)?;
        ensure!(target.ask("call 0 5", "done")? == "done 5");
        detach(&registry, &target)?;
        target.ask("unload 0", "unloaded")?;
        let counts = tally(&retained(&session)?)?;
        ensure!(counts["plugin_a_call"] == [5, 5, 0], "{counts:?}");
    }
    Ok(())
}

/// Two libraries of the same layout alternate at one address while others are switched. The events
/// of each keep its names (P63).
#[test]
fn a_library_does_not_inherit_the_values_of_its_predecessor() -> Result<()> {
    const CALLS: u64 = 20;
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for rule in ["plugin_*_call", "plugin_*_inner"] {
        session.toggle(&glob(rule), Switch::On, Run::Real)?;
    }
    let rounds = soak(100, 5000);
    let over = AtomicBool::new(false);
    let mut places = BTreeMap::<String, u64>::new();
    std::thread::scope(|scope| -> Result<()> {
        let noise = scope.spawn(|| -> Result<()> {
            let of_host = glob("uses_*");
            while !over.load(Ordering::Relaxed) {
                for to in [Switch::On, Switch::Off] {
                    session.toggle(&of_host, to, Run::Real)?;
                    session.toggle(&glob("plugin_*_noise"), to, Run::Real)?;
                }
            }
            Ok(())
        });
        let mut swap = || -> Result<()> {
            for _ in 0..rounds {
                for file in ["plugin_a.so", "plugin_b.so"] {
                    let loaded = target.ask(&format!("load 0 {file}"), "loaded")?;
                    *places.entry(loaded).or_default() += 1;
                    wait_until(DEADLINE, "the library is armed", || {
                        let on = |module: &ModuleStatus| module.armed.is_some();
                        Ok(modules(&session, file).iter().any(on).then_some(()))
                    })?;
                    target.ask(&format!("call 0 {CALLS}"), "done")?;
                    target.ask("unload 0", "unloaded")?;
                }
            }
            Ok(())
        };
        let swapped = swap();
        over.store(true, Ordering::Relaxed);
        noise.join().ok().context("panicked")??;
        swapped
    })?;
    ensure!(places.len() == 1, "no place was used again: {places:?}");
    session.toggle(&glob("plugin_*_noise"), Switch::Off, Run::Real)?;
    // This request, or a look within a second, finds that the last library has gone.
    session.functions(None)?;
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let trace = retained(&session)?;
    let mut counts = tally(&trace)?;
    counts.retain(|name, _| !name.ends_with("_noise"));
    let calls = rounds * CALLS;
    let names = [
        "plugin_a_call",
        "plugin_a_inner",
        "plugin_b_call",
        "plugin_b_inner",
    ];
    let expected = names.map(|name| (name.to_owned(), [calls, calls, 0]));
    ensure!(counts == BTreeMap::from(expected), "{counts:?}");
    // The same build at the same address has the same ids each time. No other library ever has
    // them.
    let files: Vec<_> = trace.modules().iter().map(|module| &module.path).collect();
    ensure!(files.len() == 3, "{files:?}");
    // The lifetimes: each time that a library was called, and never both libraries at the same
    // time.
    let lifetimes = &trace.coverage().lifetimes;
    let [one, other] = [1, 2].map(|id| {
        let of_it = lifetimes.iter().filter(|life| life.module.0 == id);
        let times = of_it.map(|life| (life.loaded, life.unloaded));
        times.collect::<Vec<_>>()
    });
    for (mine, theirs) in [(&one, &other), (&other, &one)] {
        ensure!(mine.len() as u64 == rounds.min(4096), "{}", mine.len());
        for &(loaded, unloaded) in mine {
            ensure!(
                loaded.is_some() && loaded < unloaded,
                "{loaded:?} {unloaded:?}"
            );
            let with_it = |life: &&(_, _)| life.0 < unloaded && life.1 > loaded;
            let with_it = theirs.iter().find(with_it);
            ensure!(
                with_it.is_none(),
                "{loaded:?} {unloaded:?} beside {with_it:?}"
            );
        }
    }
    Ok(())
}

/// Threads run in a library while it is switched, and others come and go. Each event has the name
/// of the library that its thread was in.
#[test]
fn libraries_may_come_and_go_under_load() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    session.toggle(&glob("uses_*"), Switch::On, Run::Real)?;
    let rounds = soak(200, 10_000);
    let over = AtomicBool::new(false);
    let answer = std::thread::scope(|scope| -> Result<String> {
        let toggling = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                for to in [Switch::On, Switch::Off] {
                    session.toggle(&glob("plugin_*"), to, Run::Real)?;
                    std::thread::yield_now();
                }
            }
            Ok(())
        });
        // A library is loaded for a few milliseconds. On a busy machine it may be gone each time
        // before it is on.
        let both_were_on = || -> Result<bool> {
            let counts = tally(&retained(&session)?)?;
            let mut names = ["plugin_a_call", "plugin_b_call"].iter();
            Ok(names.all(|&name| counts.get(name).is_some_and(|&[entered, ..]| entered > 0)))
        };
        let mut storms = || -> Result<String> {
            for _ in 0..50 {
                target.send(&format!("storm {rounds} 3"))?;
                let answer = target.line_with("stormed", 60 * DEADLINE)?;
                if both_were_on()? {
                    return Ok(answer);
                }
            }
            anyhow::bail!("one of the libraries was never on");
        };
        let answer = storms();
        over.store(true, Ordering::Relaxed);
        toggling.join().ok().context("panicked")??;
        answer
    })?;
    let mut counted = answer.split(' ').skip(1).map(str::parse::<u64>);
    let calls = [counted.next(), counted.next()];
    let [Some(Ok(of_a)), Some(Ok(of_b))] = calls else {
        anyhow::bail!("{answer}");
    };
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let trace = retained(&session)?;
    let counts = tally(&trace)?;
    let entered = |name: &str| counts.get(name).map_or(0, |counts| counts[0]);
    ensure!(
        entered("uses_a") * 20 == of_a && entered("uses_b") * 20 == of_b,
        "{answer}: {counts:?}"
    );
    for (calls, prefix) in [(of_a, "plugin_a_"), (of_b, "plugin_b_")] {
        let seen = entered(&format!("{prefix}call"));
        ensure!(seen > 0 && seen <= calls, "{answer}: {counts:?}");
    }
    each_event_is_of_the_library_in_use(&trace)
}

fn each_event_is_of_the_library_in_use(trace: &Trace) -> Result<()> {
    for (thread, blocks) in trace.blocks_by_thread() {
        let mut used = String::new();
        for event in blocks.iter().flat_map(|block| block.events()) {
            let EventBody::Call { function, kind, .. } = event?.body else {
                continue;
            };
            let name = trace.function_name(function).into_owned();
            match name.strip_prefix("uses_") {
                Some(library) if kind == CallKind::Enter => used = format!("plugin_{library}_"),
                Some(_) => {}
                None => ensure!(name.starts_with(&used), "{name} in {used} of {thread:?}"),
            }
        }
    }
    Ok(())
}

/// One file loaded twice, a file that is replaced while it is loaded, and a file without a build
/// id.
#[test]
fn copies_and_builds_of_one_file_are_distinguished() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = copy_into(Fixture::Plugins, dir.path())?;
    let mut target = Target::spawn_command(Command::new(&program))?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    session.toggle(&glob("plugin_*_call"), Switch::On, Run::Real)?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    armed(&session, "plugin_a.so", 1)?;
    target.ask("copy 1 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "both copies are armed", || {
        let on = modules(&session, "plugin_a.so");
        let on = on.iter().filter(|module| module.armed.is_some());
        Ok((on.count() == 2).then_some(()))
    })?;
    for (slot, calls) in [(0, 3), (1, 4)] {
        target.ask(&format!("call {slot} {calls}"), "done")?;
    }
    target.ask("unload 0", "unloaded")?;
    std::fs::copy(dir.path().join("plugin_c.so"), dir.path().join("new"))?;
    std::fs::rename(dir.path().join("new"), dir.path().join("plugin_a.so"))?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "the new build is armed", || {
        let new = modules(&session, "plugin_a.so");
        let mut new = new.iter().filter(|module| module.build_id.is_none());
        Ok(new.any(|module| module.armed.is_some()).then_some(()))
    })?;
    target.ask("call 0 5", "done")?;
    for slot in [0, 1] {
        target.ask(&format!("unload {slot}"), "unloaded")?;
    }
    unloaded(&session, "plugin_a.so")?;
    switch(&session, Switch::Off)?;
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    let counts = tally(&trace)?;
    let expected = [("plugin_a_call", [7, 7, 0]), ("plugin_c_call", [5, 5, 0])];
    let expected = expected.map(|(name, counts)| (name.to_owned(), counts));
    ensure!(counts == BTreeMap::from(expected), "{counts:?}");
    // By module: two of the same path and build, and one of the same path and another build.
    let mut calls: Vec<u64> = session
        .tables()
        .modules()
        .iter()
        .map(|numbered| &numbered.module)
        .filter(|module| module.path.ends_with("plugin_a.so"))
        .map(|module| {
            let of_it = |function: &&xray_trace::model::Function| function.module == module.id;
            let functions = trace.functions().iter().filter(of_it);
            let ids: Vec<_> = functions.map(|function| function.id).collect();
            let events = trace.blocks().iter().flat_map(|block| block.events());
            let entries = events.filter(|event| {
                matches!(event, Ok(event) if matches!(event.body,
                    EventBody::Call { function, kind: CallKind::Enter, .. } if ids.contains(&function)))
            });
            entries.count() as u64
        })
        .collect();
    calls.sort_unstable();
    ensure!(calls == [3, 4, 5], "{calls:?}");
    Ok(())
}

/// The same for a library that is loaded before the attach.
#[test]
fn a_library_without_room_near_it_is_left_out_at_attach() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    target.ask("reserve 4", "reserved")?;
    target.ask("load 0 large_a.so", "loaded")?;
    target.ask("reserve 4", "reserved")?;
    target.ask("fill", "filled")?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    let [(path, refusal)] = attached.report.refused_modules.as_slice() else {
        anyhow::bail!("{:?}", attached.report);
    };
    ensure!(
        path.ends_with("large_a.so") && refusal.reason == Reason::NoMemory,
        "{path}: {refusal:?}"
    );
    // The other modules are traced.
    ensure!(switch(&attached.session, Switch::On)?.sleds > 0);
    ensure!(
        modules(&attached.session, "large_a.so")[0]
            .refusal
            .is_some()
    );
    ensure!(target.ask("call 0 5", "done")? == "done 5");
    detach(&registry, &target)?;
    Ok(())
}

/// Trampolines are placed near a library. If there is no room near it, only that library is left
/// out, and the report has the reason (P35).
#[test]
fn a_library_far_away_gets_trampolines_of_its_own_or_a_refusal() -> Result<()> {
    // The test takes the room after the library was loaded. The tracer looks for libraries once a
    // second, whatever the rules are.
    for _ in 0..20 {
        if refused_for_room()? {
            return Ok(());
        }
    }
    anyhow::bail!("the library was found each time before the room near it was taken")
}

/// Returns false if the library was found before the room was taken.
fn refused_for_room() -> Result<bool> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    session.toggle(&glob("plugin_*"), Switch::On, Run::Real)?;
    target.ask("reserve 4", "reserved")?;
    target.ask("load 0 large_a.so", "loaded")?;
    armed(&session, "large_a.so", 3)?;
    session.toggle(&everything(), Switch::Off, Run::Real)?;
    wait_until(DEADLINE, "nothing is watched any more", || {
        Ok((session.status().detection == Detection::Idle).then_some(()))
    })?;
    target.ask("reserve 4", "reserved")?;
    target.ask("load 1 large_b.so", "loaded")?;
    target.ask("reserve 4", "reserved")?;
    target.ask("fill", "filled")?;
    session.toggle(&glob("plugin_*"), Switch::On, Run::Real)?;
    let found = wait_until(DEADLINE, "the library is found", || {
        Ok(modules(&session, "large_b.so").into_iter().next())
    })?;
    let Some(refused) = found.refusal else {
        return Ok(false);
    };
    ensure!(refused.reason == Reason::NoMemory, "{refused:?}");
    for slot in 0..2 {
        target.ask(&format!("call {slot} 5"), "done")?;
    }
    detach(&registry, &target)?;
    let counts = tally(&retained(&session)?)?;
    let names = ["plugin_a_call", "plugin_a_inner", "plugin_a_noise"];
    let expected = names.map(|name| (name.to_owned(), [5, 5, 0]));
    ensure!(counts == BTreeMap::from(expected), "{counts:?}");
    Ok(true)
}
