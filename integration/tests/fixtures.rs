//! Every fixture can be built, and does untraced what the tests of the tracer rely on.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use integration::{
    DEADLINE, Fixture, GroundTruth, ProcessState, SequenceHash, Sled, SledKind, Target, Tool,
    build, copy_into, sectionless_into, sleds_of, stripped_into, text_differences, wait_until,
};

fn kinds(program: &Path) -> Result<BTreeMap<SledKind, usize>> {
    let mut kinds = BTreeMap::new();
    for sled in sleds_of(program)? {
        *kinds.entry(sled.kind).or_default() += 1;
    }
    Ok(kinds)
}

fn run_counted(fixture: Fixture, arguments: &[&str]) -> Result<GroundTruth> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(build(fixture)?);
    command.args(arguments).current_dir(dir.path());
    let mut target = Target::spawn_command(command)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    target.send("quit")?;
    assert!(target.wait(DEADLINE)?.success());
    Ok(truth)
}

#[test]
fn every_fixture_builds() -> Result<()> {
    for &fixture in Fixture::ALL {
        let program = build(fixture)?;
        let sleds = sleds_of(&program).with_context(|| fixture.name().to_owned())?;
        let without = matches!(
            fixture,
            Fixture::Plain | Fixture::Instrumented | Fixture::M32
        );
        assert_eq!(sleds.is_empty(), without, "{}", fixture.name());
        // An odd return address could not name a sled at an odd address.
        assert!(
            sleds.iter().all(|sled| sled.address % 2 == 0),
            "{}",
            fixture.name()
        );
    }
    Ok(())
}

#[test]
fn fixtures_are_built_once() -> Result<()> {
    let built: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| build(Fixture::Plain)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Result<_>>()
    })?;
    assert!(built.windows(2).all(|pair| pair[0] == pair[1]));
    Ok(())
}

#[test]
fn counted_is_the_same_with_the_same_seed_and_its_hash_is_of_its_events() -> Result<()> {
    let arguments = [
        "--threads",
        "3",
        "--calls",
        "200",
        "--first",
        "1000000",
        "--seed",
        "7",
    ];
    let truth = run_counted(Fixture::Counted, &arguments)?;
    assert_eq!(truth.threads.len(), 3);
    for thread in &truth.threads {
        assert_eq!(thread.events, thread.first.len() as u64);
        let mut hash = SequenceHash::new();
        thread.first.iter().for_each(|event| hash.push(*event));
        assert_eq!(hash.value(), thread.hash);
    }
    let again = run_counted(Fixture::Counted, &arguments)?;
    assert_eq!(truth.calls(), again.calls());
    assert!(
        truth.calls().iter().all(|calls| *calls > 0),
        "{:?}",
        truth.calls()
    );
    assert_eq!(truth.function("work::even(unsigned long)"), Some(12));
    Ok(())
}

#[test]
fn counted_churns_through_its_threads() -> Result<()> {
    let truth = run_counted(
        Fixture::Counted,
        &[
            "--threads",
            "4",
            "--calls",
            "20",
            "--churn",
            "50",
            "--first",
            "0",
        ],
    )?;
    assert_eq!(truth.threads.len(), 200);
    Ok(())
}

#[test]
fn counted_stops_on_request() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
    target.send("go")?;
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    assert_eq!(truth.threads.len(), 2);
    target.still_running()
}

#[test]
fn counted_has_the_same_calls_under_the_runtime_of_llvm() -> Result<()> {
    let arguments = ["--threads", "2", "--calls", "100", "--seed", "3"];
    let plain = run_counted(Fixture::Counted, &arguments)?;
    for mode in ["xray-fdr", "xray-basic"] {
        let traced = run_counted(
            Fixture::CountedLlvm,
            &[&arguments[..], &["--mode", mode]].concat(),
        )?;
        assert_eq!(plain.calls(), traced.calls(), "{mode}");
    }
    Ok(())
}

#[test]
fn torture_holds_without_a_tracer_and_has_every_kind_of_sled() -> Result<()> {
    let mut target = Target::spawn(Fixture::Torture, [""; 0])?;
    assert!(target.ask("check", "")?.starts_with("ok "));
    let kinds = kinds(target.program())?;
    // By hand: 1 entry, 1 entry with argument, 1 exit, 2 + 32 tail exits. The other sleds are
    // compiled.
    assert!(kinds[&SledKind::Entry] > 1 && kinds[&SledKind::Exit] > 1);
    assert!(kinds[&SledKind::EntryArgument] >= 1 && kinds[&SledKind::TailExit] >= 34);
    Ok(())
}

/// The harness must see the damage that it is made for: each row damages one thing behind one kind
/// of sled.
#[test]
fn torture_sees_spoiled_registers() -> Result<()> {
    let rows: &[(&str, SledKind, &[u8], &str)] = &[
        (
            "mov $0,%eax",
            SledKind::EntryArgument,
            &[0xb8, 0, 0, 0, 0],
            "bad argument gpr0",
        ),
        (
            "mov $0,%r11d",
            SledKind::EntryArgument,
            &[0x41, 0xbb, 0, 0, 0, 0],
            "bad argument gpr11",
        ),
        (
            "pxor %xmm3,%xmm3",
            SledKind::EntryArgument,
            &[0x66, 0x0f, 0xef, 0xdb],
            "bad argument vector30",
        ),
        (
            "fldz",
            SledKind::EntryArgument,
            &[0xd9, 0xee],
            "bad argument x87-byte",
        ),
        (
            "std",
            SledKind::EntryArgument,
            &[0xfd],
            "bad argument flags",
        ),
    ];
    for (what, kind, code, complaint) in rows {
        let mut target = Target::spawn(Fixture::Torture, [""; 0])?;
        let sled = sled_of_kind(target.program(), *kind)?;
        // The body first, then the byte that lets the program into it: the jump over the body gets
        // the distance 0.
        let mut body = vec![0x90; 9];
        body[..code.len()].copy_from_slice(code);
        let address = sled.address + load_bias(&target)?;
        let memory = OpenOptions::new()
            .write(true)
            .open(format!("/proc/{}/mem", target.pid()))?;
        memory.write_all_at(&body, address + 2)?;
        memory.write_all_at(&[0], address + 1)?;
        // The current round may have passed the sled already. The second answer is about a whole
        // round.
        target.ask("check", "")?;
        let answer = target.ask("check", "")?;
        assert!(answer.starts_with(complaint), "{what}: {answer}");
    }
    Ok(())
}

fn sled_of_kind(program: &Path, kind: SledKind) -> Result<Sled> {
    sleds_of(program)?
        .into_iter()
        .find(|sled| sled.kind == kind)
        .context("no such sled")
}

/// The distance by which the loader moved the program.
fn load_bias(target: &Target) -> Result<u64> {
    let maps = procfs::process::Process::new(target.pid())?.maps()?;
    let first = maps.iter().next().context("no mappings")?;
    Ok(first.address.0 - first.offset)
}

#[test]
fn siglots_checksums_hold_under_signals() -> Result<()> {
    let mut target = Target::spawn(Fixture::Siglots, ["--threads", "2", "--hz", "1000"])?;
    // "ok ITERATIONS SIGNALS": both numbers must be above 0 before the test proves anything.
    let answer = wait_until(DEADLINE, "signals and iterations", || {
        let answer = target.ask("check", "")?;
        let numbers: Vec<u64> = answer
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        Ok((!matches!(numbers[..], [0, _] | [_, 0])).then_some(answer))
    })?;
    assert!(answer.starts_with("ok "), "{answer}");
    assert!(target.ask("stop", "")?.starts_with("ok "));
    Ok(())
}

#[test]
fn tailcond_has_tail_sleds_before_conditional_jumps() -> Result<()> {
    let mut target = Target::spawn(Fixture::TailCond, [""; 0])?;
    assert_eq!(target.ask("check", "")?, "ok 1");
    let listing = Tool::LlvmObjdump19.run([
        "-d".as_ref(),
        "--no-show-raw-insn".as_ref(),
        "--no-leading-addr".as_ref(),
        target.program().as_os_str(),
    ])?;
    // The nine dead bytes of a sled, and the jump behind them.
    let lines: Vec<_> = listing.lines().map(str::trim).collect();
    let jumps: Vec<_> = lines
        .windows(2)
        .filter(|pair| pair[0].starts_with("nopw\t0x200(") && pair[1].contains("<target>"))
        .map(|pair| pair[1].split('\t').next().unwrap_or_default())
        .collect();
    assert_eq!(jumps, ["jmp", "jne", "jb", "ja", "jl", "jg"]);
    Ok(())
}

#[test]
fn blocking_calls_block_until_they_are_released() -> Result<()> {
    let mut target = Target::spawn(Fixture::Blocking, [""; 0])?;
    assert_eq!(target.ask("check", "checked")?, "checked 39 0");
    let done = target.ask("release", "done")?;
    // Seven calls end only by a signal. io_uring may be switched off on this machine, and still
    // counts as one of them.
    assert_eq!(done, "done 32 7");
    Ok(())
}

#[test]
fn blocking_can_block_its_main_thread() -> Result<()> {
    let mut command = Command::new(build(Fixture::Blocking)?);
    command.args(["--main", "epoll_wait"]);
    let mut target = Target::spawn_unready(command)?;
    let line = target.line_with(&format!("thread {} ", target.pid()), DEADLINE)?;
    assert!(line.ends_with(" epoll_wait"), "{line}");
    target.line_with("ready", DEADLINE)?;
    assert_eq!(target.ask("check", "checked")?, "checked 39 0");
    // Its System V queue and semaphores would outlive a kill.
    target.send("quit")?;
    assert!(target.wait(DEADLINE)?.success());
    Ok(())
}

#[test]
fn arg1_has_argument_sleds() -> Result<()> {
    for fixture in [Fixture::Arg1, Fixture::Static] {
        let mut target = Target::spawn(fixture, [""; 0])?;
        assert!(target.ask("go", "done ")?.len() > 5);
        assert_eq!(kinds(target.program())?[&SledKind::EntryArgument], 2);
    }
    Ok(())
}

#[test]
fn results_follow_from_arguments() -> Result<()> {
    let mut target = Target::spawn(Fixture::Values, [""; 0])?;
    assert_eq!(target.ask("go 10", "done ")?, "done 10");
    target.ask("storm 2", "storming")?;
    assert!(target.ask("stop", "")?.starts_with("ok "));
    Ok(())
}

#[test]
fn nine_sleds_record_user_events() -> Result<()> {
    let mut target = Target::spawn(Fixture::Events, ["--threads", "2"])?;
    target.send("go")?;
    target.line_with("done 0", DEADLINE)?;
    let kinds = kinds(target.program())?;
    assert_eq!(
        (kinds[&SledKind::CustomEvent], kinds[&SledKind::TypedEvent]),
        (6, 3)
    );
    Ok(())
}

/// Without XRay, the header's macros are empty: no sled, nothing to link, no warning.
#[test]
fn events_are_nothing_without_xray() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("without-runtime/xray_events.h");
    let source = dir.path().join("program.c");
    let program = dir.path().join("program");
    let text = format!(
        "#include \"{}\"\nint main(void) {{ xray_custom_event(\"a\", 1); xray_typed_event(7, \"b\", 1); return 0; }}\n",
        header.display()
    );
    std::fs::write(&source, text)?;
    for hidden in ["-DSOMETHING", "-D__has_builtin(name)=0"] {
        Tool::Clang19.run([
            "-Wall".as_ref(),
            "-Wextra".as_ref(),
            "-Werror".as_ref(),
            "-Wno-builtin-macro-redefined".as_ref(),
            hidden.as_ref(),
            source.as_os_str(),
            "-o".as_ref(),
            program.as_os_str(),
        ])?;
        assert_eq!(sleds_of(&program)?, []);
        assert!(Command::new(&program).status()?.success());
    }
    Ok(())
}

#[test]
fn noexit_unwinds_and_leaves() -> Result<()> {
    let mut target = Target::spawn(Fixture::NoExit, [""; 0])?;
    assert_eq!(target.ask("go", "done")?, "done 43 8");
    target.send("leave")?;
    assert_eq!(target.wait(DEADLINE)?.code(), Some(3));
    Ok(())
}

#[test]
fn manythreads_watches_the_clock() -> Result<()> {
    let mut target = Target::spawn(Fixture::ManyThreads, ["--threads", "100"])?;
    assert_eq!(ProcessState::of(target.pid())?.threads.len(), 102);
    wait_until(DEADLINE, "a beat", || {
        Ok((target.ask("calls", "calls ")? != "calls 0").then_some(()))
    })?;
    assert!(target.ask("gap", "gap ")?.len() > 4);
    Ok(())
}

#[test]
fn old_sleds_have_map_entries_of_three_versions() -> Result<()> {
    for fixture in [Fixture::OldSledsPie, Fixture::OldSledsFixed] {
        let mut target = Target::spawn(fixture, [""; 0])?;
        assert_eq!(target.ask("go", "done")?, "done 606");
        let sleds = sleds_of(target.program())?;
        let versions: Vec<_> = sleds.iter().map(|sled| sled.version).collect();
        assert_eq!(versions, [0, 0, 1, 1, 2, 2]);
        assert!(
            sleds
                .chunks(2)
                .all(|pair| pair[0].function == pair[0].address),
            "{sleds:x?}"
        );
    }
    Ok(())
}

#[test]
fn dso_has_sleds_in_program_and_library() -> Result<()> {
    let mut target = Target::spawn(Fixture::Dso, [""; 0])?;
    assert_eq!(target.ask("go", "done")?, "done 1016");
    let library = target.program().with_file_name("libtraced.so");
    assert_eq!(sleds_of(&library)?.len(), 4);
    for module in [target.program(), &library] {
        assert_eq!(text_differences(target.pid(), module, module)?, []);
    }
    Ok(())
}

#[test]
fn strict_seccomp_target_answers() -> Result<()> {
    let mut target = Target::spawn(Fixture::SeccompStrict, [""; 0])?;
    assert_eq!(target.ask("", "")?, "alive");
    let state = ProcessState::of(target.pid())?;
    assert_eq!(state.threads[&target.pid()].seccomp, Some(1));
    Ok(())
}

#[test]
fn a_32_bit_target_runs() -> Result<()> {
    Target::spawn(Fixture::M32, [""; 0])?.still_running()
}

#[test]
fn leaf_prints_what_a_call_costs() -> Result<()> {
    let few = ["--batches", "3", "--calls", "1000"];
    for mode in ["floor", "plain", "sleds"] {
        let mut target = Target::spawn(Fixture::Leaf, [&few[..], &["--mode", mode]].concat())?;
        let line = target.ask("go", mode)?;
        assert_eq!(
            line.split(' ')
                .filter_map(|word| word.parse::<f64>().ok())
                .count(),
            2,
            "{line}"
        );
    }
    for log in ["xray-fdr", "xray-basic"] {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(build(Fixture::LeafLlvm)?);
        command
            .args(few)
            .args(["--log", log])
            .current_dir(dir.path());
        let mut target = Target::spawn_command(command)?;
        assert!(target.ask("go", "sleds")?.len() > 6);
    }
    Ok(())
}

#[test]
fn many20k_has_20000_functions() -> Result<()> {
    let mut target = Target::spawn(Fixture::Many20k, [""; 0])?;
    assert_eq!(kinds(target.program())?[&SledKind::Entry], 20_000);
    // The sum of 3 + i over all i below 20,000.
    assert_eq!(target.ask("go", "done")?, "done 200050000");
    Ok(())
}

#[test]
fn demo_beats_and_has_sleds_of_its_own() -> Result<()> {
    let mut target = Target::spawn(Fixture::Demo, [""; 0])?;
    let first = target.line_with("beat ", DEADLINE)?;
    let second = target.line_with("beat ", DEADLINE)?;
    assert_ne!(first, second);
    target.close_stdin();
    assert!(target.wait(DEADLINE)?.success());
    Ok(())
}

#[test]
fn text_of_an_untouched_target_equals_its_file_and_a_change_is_seen() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let program = target.program().to_owned();
    assert_eq!(text_differences(target.pid(), &program, &program)?, []);
    let sled = sled_of_kind(&program, SledKind::EntryArgument)?;
    let address = sled.address + load_bias(&target)?;
    let memory = OpenOptions::new()
        .write(true)
        .open(format!("/proc/{}/mem", target.pid()))?;
    memory.write_all_at(&[0xff, 0xfe], address + 4)?;
    let differences = text_differences(target.pid(), &program, &program)?;
    assert_eq!(differences.len(), 1, "{differences:x?}");
    assert_eq!(differences[0].file_address, sled.address + 4);
    assert_eq!(differences[0].found, [0xff, 0xfe]);
    Ok(())
}

#[test]
fn a_process_state_does_not_change_by_looking() -> Result<()> {
    let target = Target::spawn(Fixture::ManyThreads, ["--threads", "3"])?;
    assert_eq!(
        ProcessState::of(target.pid())?,
        ProcessState::of(target.pid())?
    );
    Ok(())
}

#[test]
fn a_target_that_has_ended_is_reported() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plain, [""; 0])?;
    target.send("quit")?;
    target.wait(DEADLINE)?;
    assert!(target.still_running().is_err());
    assert!(target.line(Duration::from_millis(1)).is_err());
    Ok(())
}

#[test]
fn forks_makes_children_and_becomes_a_new_image() -> Result<()> {
    let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
    assert_eq!(target.ask("fork 3", "done")?, "done 100");
    assert_eq!(target.ask("vfork 2", "done")?, "done 400");
    assert_eq!(
        target.ask("exec", "ready")?,
        format!("ready {}", target.pid())
    );
    assert_eq!(target.ask("fork 1", "done")?, "done 100");
    Ok(())
}

#[test]
fn leaderless_goes_on_without_its_main_thread() -> Result<()> {
    let mut target = Target::spawn(Fixture::Leaderless, [""; 0])?;
    assert_eq!(target.ask("go", "done")?, "done 1");
    let leader = procfs::process::Process::new(target.pid())?;
    assert_eq!(leader.stat()?.state, 'Z');
    Ok(())
}

#[test]
fn a_deleted_program_and_its_replacement_are_distinguished() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = copy_into(Fixture::Dso, dir.path())?;
    let target = Target::spawn_command(Command::new(&program))?;
    let kept = dir.path().join("kept");
    std::fs::copy(&program, &kept)?;
    std::fs::remove_file(&program)?;
    assert_eq!(text_differences(target.pid(), &program, &kept)?, []);
    // Another build at the same path: the path is right and the bytes differ. In this program's
    // code, addresses are file offsets.
    let mut bytes = std::fs::read(&kept)?;
    let sled = sled_of_kind(&kept, SledKind::Entry)?;
    bytes[usize::try_from(sled.address)?] ^= 0xff;
    std::fs::write(&program, bytes)?;
    assert_eq!(text_differences(target.pid(), &program, &program)?.len(), 1);
    Ok(())
}

#[test]
fn stripped_programs_run_and_keep_their_map() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = stripped_into(Fixture::Arg1, dir.path())?;
    assert_eq!(
        sleds_of(&program)?.len(),
        sleds_of(&build(Fixture::Arg1)?)?.len()
    );
    Target::spawn_command(Command::new(&program))?.still_running()?;

    let program = sectionless_into(Fixture::Arg1, dir.path())?;
    assert_eq!(sleds_of(&program)?, []);
    Target::spawn_command(Command::new(&program))?.still_running()
}
