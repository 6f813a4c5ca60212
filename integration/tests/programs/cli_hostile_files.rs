//! Files that are no traces, or damaged ones: one line of error, never a panic.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use integration::{Fixture, GroundTruth, Target};
use nix::sys::signal::Signal;

use crate::scene::{Cli, NOBODY, Ran, Scene, all_on};

/// Checks that the command neither crashes nor prints too much: exit code 0, or 1 with one line.
fn ensure_calm(ran: &Ran, what: &str) -> Result<()> {
    match ran.code {
        Some(0) => Ok(()),
        Some(1) => ran.failed(1, &[]),
        _ => anyhow::bail!("{what}: {ran:?}"),
    }
}

fn both(cli: &Cli, file: &str) -> Result<[Ran; 2]> {
    let report = cli.run(["report", file])?;
    let convert = cli.run(["convert", file, "-o", "out.json", "--force"])?;
    Ok([report, convert])
}

/// Random bytes, the same each time.
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    })
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    noise(seed)
        .take(length)
        .map(|value| value.to_le_bytes()[0])
        .collect()
}

/// A small real trace.
fn recorded(scene: &Scene) -> Result<Vec<u8>> {
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "20"])?;
    let mut running = cli.start(["record", &target.pid().to_string(), "-o", "good"])?;
    running.until("everything is on", || all_on(&target))?;
    GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    Ok(fs::read(scene.path("good"))?)
}

/// CRC-32 as in zip, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

fn section(kind: &[u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_vec();
    bytes.extend(
        u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    bytes.extend(payload);
    let crc = crc32(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

#[test]
fn a_file_that_is_no_trace_is_refused_in_one_line() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let good = recorded(&scene)?;
    let header = &good[..16];
    fs::create_dir(scene.path("directory"))?;
    fs::write(scene.path("empty"), "")?;
    fs::write(scene.path("garbage"), bytes(1, 100_000))?;
    fs::write(scene.path("text"), "call events\n".repeat(1000))?;
    fs::write(scene.path("short"), &header[..15])?;
    let mut other = header.to_vec();
    other[8] = 2;
    let crc = crc32(&other[..12]);
    other[12..].copy_from_slice(&crc.to_le_bytes());
    fs::write(scene.path("version"), &other)?;
    other[9] = 1;
    fs::write(scene.path("crc"), &other)?;
    let program = integration::xrayctl()?;
    let program = program.to_str().unwrap_or_default();
    for file in [
        "empty",
        "garbage",
        "text",
        "short",
        "version",
        "crc",
        "directory",
        "missing",
        "/dev/null",
        "/dev/zero",
        program,
    ] {
        for ran in both(&cli, file)? {
            ran.failed(1, &["cannot read", file])?;
        }
    }
    ensure!(!scene.path("out.json").exists(), "a file was left");
    Ok(())
}

#[test]
fn a_file_that_may_not_be_read() -> Result<()> {
    if !integration::is_root_for("a_file_that_may_not_be_read")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let file = scene.path("secret");
    fs::write(&file, "")?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    // The output is tried first, and would be refused as well.
    fs::set_permissions(scene.path("."), Permissions::from_mode(0o777))?;
    let nobody = scene.alone()?.as_user(NOBODY);
    for ran in both(&nobody, "secret")? {
        ran.failed(1, &["secret", "Permission denied"])?;
    }
    Ok(())
}

#[test]
fn a_trace_that_was_cut_or_damaged_gives_what_is_whole() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let good = recorded(&scene)?;
    let end = good.len() as u64;
    // The cuts include the ends of the header and of sections.
    let mut cuts: Vec<u64> = noise(2).take(25).map(|value| value % end).collect();
    cuts.extend([16, 17, 20, 24, end - 1, end - 2]);
    let mut before = 0;
    cuts.sort_unstable();
    for cut in cuts {
        fs::write(scene.path("cut"), &good[..usize::try_from(cut)?])?;
        let ran = cli.run(["report", "cut", "--json"])?;
        if cut < 16 {
            ran.failed(1, &["cannot read cut"])?;
            continue;
        }
        ensure!(ran.code == Some(0), "cut at {cut}: {ran:?}");
        let report: serde_json::Value = serde_json::from_str(&ran.out)?;
        ensure!(
            report["trace"]["completeness"] != "complete",
            "cut at {cut}: {report}"
        );
        // A longer file has at least as many events.
        let events = report["trace"]["events"].as_u64().unwrap_or_default();
        ensure!(events >= before, "cut at {cut}: {events} after {before}");
        before = events;
        ensure!(
            cli.run(["convert", "cut", "-o", "out.fdr", "--force"])?
                .code
                == Some(0)
        );
    }
    for seed in 0..15 {
        let mut damaged = good.clone();
        for (at, byte) in noise(seed).take(3).zip(bytes(seed + 100, 3)) {
            damaged[usize::try_from(at % end)?] ^= byte | 1;
        }
        fs::write(scene.path("damaged"), damaged)?;
        for ran in both(&cli, "damaged")? {
            ensure_calm(&ran, &format!("seed {seed}"))?;
        }
    }
    Ok(())
}

/// Checksums are right and claims are huge. Neither memory nor time grows with the claims.
#[test]
fn huge_claims_cost_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let good = recorded(&scene)?;
    let header = &good[..16];
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let most32 = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let numbers = |count: usize| most.repeat(count);
    let files: &[(&str, Vec<u8>)] = &[
        // A section that ends far beyond the file.
        (
            "length",
            [&b"BLCK"[..], &u32::MAX.to_le_bytes(), &[0; 64]].concat(),
        ),
        (
            "length16",
            [&b"BLCK"[..], &(16u32 << 20).to_le_bytes(), &[0; 64]].concat(),
        ),
        // A block of 2^32 - 1 events in a few bytes.
        (
            "block",
            section(
                b"BLCK",
                &[&[0, 0][..], &most, &most32, &[0, 0x21, 0x21]].concat(),
            ),
        ),
        (
            "lost",
            section(b"LOST", &[&most32[..], &most].concat()).repeat(3),
        ),
        ("end", section(b"END ", &numbers(3))),
        ("text", section(b"THRD", &[&[0, 0, 0][..], &most].concat())),
        (
            "ids",
            section(b"THRD", &[&most32[..], &[0, 1, 1, b'x']].concat()),
        ),
        ("anchor", section(b"ANCH", &numbers(3)).repeat(2)),
        (
            "anchors",
            [section(b"ANCH", &[0, 0, 0]), section(b"ANCH", &numbers(3))].concat(),
        ),
        (
            "function",
            section(
                b"FUNC",
                &[&most32.repeat(3)[..], &most, &[0, 0, 0, 0]].concat(),
            ),
        ),
        ("unknown", section(b"ABCD", &bytes(3, 5000))),
    ];
    for (name, content) in files {
        fs::write(scene.path(name), [header, content].concat())?;
        let limited = |args: &[&str]| -> Result<Ran> {
            // 1 GiB of address space: little for a runtime with many threads, and much for these
            // files.
            let mut words = vec!["-c", "ulimit -v 1048576; exec \"$0\" \"$@\""];
            let program = integration::xrayctl()?;
            words.push(program.to_str().unwrap_or_default());
            words.extend(args);
            let mut command = std::process::Command::new("sh");
            command.args(&words).current_dir(scene.path(""));
            crate::scene::Running::start(command)?.wait()
        };
        let report = limited(&["report", name, "--limit", "0"])?;
        ensure_calm(&report, name)?;
        for out in ["out.json", "out.fdr", "out.xtrace"] {
            ensure_calm(&limited(&["convert", name, "-o", out, "--force"])?, name)?;
        }
        ensure_calm(&cli.run(["report", name, "--json"])?, name)?;
    }
    Ok(())
}
