//! Runs `xrayctl`, and makes small traces for it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xray_trace::FileAddr;
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{
    CallKind, ClockAnchor, Function, FunctionId, Module, ModuleId, Process, ProcessId, SourceLine,
    Thread, ThreadId, Ticks,
};

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs `xrayctl` with these arguments. It does not find a daemon of this machine.
pub(crate) fn xrayctl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    xrayctl_in(Path::new("."), args)
}

/// Runs `xrayctl` in a directory. Lines of help are not broken.
pub(crate) fn xrayctl_in<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>) -> Ran {
    let mut command = command(args);
    let output = command
        .current_dir(dir)
        .env("COLUMNS", "1000")
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The command, for a test that uses it in another way.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrayctl"));
    command
        .args(args)
        .env_remove("XRAYD_SOCKET")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

/// Writes a trace of two threads into `dir`: nested calls, an argument, a tail exit, an exception,
/// a loss, and an open call. Two ticks are a nanosecond.
pub(crate) fn small_trace(dir: &Path) -> PathBuf {
    let path = dir.join("small.xtrace");
    let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
    let process = ProcessId(0);
    let described = Process {
        id: process,
        pid: 4711,
        start_time_ticks: 99,
        command: "server".into(),
        executable: "/usr/bin/server".into(),
        host: None,
    };
    writer.add(&described).unwrap();
    for (id, file) in [(0, "/usr/bin/server"), (1, "/usr/lib/libfoo.so")] {
        let module = Module {
            id: ModuleId(id),
            process,
            path: file.into(),
            build_id: None,
            load_bias: 0,
            event_formats: Vec::new(),
        };
        writer.add(&module).unwrap();
    }
    for (id, module, symbol, name) in [
        (0, 0, "main", "main"),
        (1, 1, "_ZN2ns5parseEPKc", "ns::parse(char const*)"),
        (2, 1, "_ZN2ns4nextEv", "ns::next()"),
        (3, 0, "work", "work"),
    ] {
        let function = Function {
            id: FunctionId(id),
            module: ModuleId(module),
            xray_id: id + 1,
            address: FileAddr(0x1000 * u64::from(id + 1)),
            symbol: Some(symbol.into()),
            name: name.into(),
            source: Some(SourceLine {
                file: "src/server.cc".into(),
                line: 10 * (id + 1),
            }),
            sleds: 2,
        };
        writer.add(&function).unwrap();
    }
    for (id, name) in [(0, "server"), (1, "worker")] {
        let thread = Thread {
            id: ThreadId(id),
            process,
            tid: 4711 + id,
            name: name.into(),
        };
        writer.add(&thread).unwrap();
    }
    let anchor = |ticks| ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns: 5_000_000 + ticks / 2,
        wall_ns: 1_700_000_000_000_000_000 + ticks / 2,
    };
    writer.add(&anchor(0)).unwrap();

    let mut main = BlockEncoder::new(ThreadId(0));
    let mut call = |ticks, function, kind, argument| {
        main.push_call(Ticks(ticks), FunctionId(function), kind, argument);
    };
    call(1_000, 0, CallKind::Enter, None);
    for start in [2_000, 12_000, 22_000] {
        call(start, 1, CallKind::Enter, Some(0xbeef));
        call(start + 1_000, 2, CallKind::Enter, None);
        call(start + 1_500, 2, CallKind::TailExit, None);
        call(start + 4_468, 1, CallKind::Exit, None);
    }
    // An exception ended `next`, so it has no exit.
    call(40_000, 1, CallKind::Enter, None);
    call(41_000, 2, CallKind::Enter, None);
    call(90_000_000, 0, CallKind::Exit, None);
    writer.block(&main.finish().unwrap()).unwrap();

    let mut worker = BlockEncoder::new(ThreadId(1));
    worker.push_call(Ticks(2_500), FunctionId(3), CallKind::Enter, None);
    worker.push_call(Ticks(2_600), FunctionId(3), CallKind::Exit, None);
    worker.push_lost(Ticks(3_000), 17);
    worker.push_call(Ticks(4_000), FunctionId(3), CallKind::Enter, None);
    writer.block(&worker.finish().unwrap()).unwrap();

    writer.add(&anchor(100_000_000)).unwrap();
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    path
}
