//! `xrayctl --as llvm-xray-19` beside `llvm-xray-19`: both have to print the same bytes, to
//! standard output and standard error, and to end with the same exit code.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xray_trace::llvm::ByteOrder;
use xray_trace::llvm::basic::{self, Owner};
use xray_trace::llvm::fdr::{self, FunctionKind};
use xray_trace::llvm::header::{Header, LogType};

const COMMANDS: &[&str] = &[
    "account -k",
    "account -k -d -f csv",
    "account -k -d -s count -r dsc",
    "account -k -d --sort=sum --sortorder=asc -p 5",
    "account -k -d -s min -r dsc",
    "account -k -d -s 99p",
    "account -k -d --recursive-calls-only",
    "account LOG",
    "convert -f yaml",
    "convert -f yaml -s=false",
    "convert -f raw",
    "convert -output-format raw --sort=0",
    "convert -f trace_event",
    "convert -f trace_event -s=false",
    "graph -k",
    "graph -k -d -e sum -v max -c 99p -b count",
    "graph -d -e med -v 90p -c min -b sum",
    "graph -k -d -e count -v 99p -c count -b max",
    "graph-diff -d LOG other.yaml -e sum -v count -c sum -b max",
    "graph-diff -d other.yaml LOG -e 99p -v 90p -c med -b sum -t 3",
    "stack -k",
    "stack",
    "stack -k -per-thread-stacks",
    "stack -k -aggregate-threads",
    "stack -k -all-stacks -stack-format=flame",
    "stack -k -all -stack-format=flame -aggregation-type=count",
    "stack -k -all -stack-format=flame -aggregate-threads",
    "stack -k -all -stack-format=flame -aggregate-threads -aggregation-type count",
];

/// Random numbers that are the same in every run.
struct Random(u64);

/// A record of a thread.
#[derive(Debug, Clone)]
enum EventKind {
    Call(FunctionKind, u32),
    Argument(u64),
    Custom(String),
    Typed(u16, String),
}

/// A record with its place.
#[derive(Debug, Clone)]
struct Record {
    tid: u32,
    cpu: u8,
    tsc: u64,
    what: EventKind,
}

/// The output, the errors and the exit code of a program.
type Outcome = (Vec<u8>, String, Option<i32>);

#[test]
fn random_logs_in_yaml() {
    for seed in 1..=3 {
        let log = random_log(seed);
        check_log(seed, "log.yaml", &yaml(&log), 28);
    }
}

#[test]
fn random_basic_logs() {
    for version in 1..=3 {
        let log = random_log(10 + u64::from(version));
        check_log(version.into(), "basic.log", &basic_log(&log, version), 28);
    }
}

#[test]
fn random_fdr_logs() {
    for version in 1..=5 {
        let seed = 20 + u64::from(version);
        let bytes = fdr_log(&random_log(seed), version, seed);
        check_log(seed, "fdr.log", &bytes, 16);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fdr.log"), &bytes).unwrap();
        let (_, theirs) = both(dir.path(), "convert fdr.log -f yaml");
        assert_eq!((&*theirs.1, theirs.2), ("", Some(0)), "version {version}");
        check(dir.path(), "fdr-dump fdr.log");
        check(dir.path(), "fdr-dump --verify fdr.log");
        // A log that ends in the middle.
        fs::write(
            dir.path().join("cut.log"),
            &bytes[..bytes.len() * 2 / 3 + 3],
        )
        .unwrap();
        let (ours, theirs) = both(dir.path(), "fdr-dump cut.log");
        assert_eq!(ours.0, theirs.0, "a cut log of version {version}");
        assert_eq!(ours.2, theirs.2, "a cut log of version {version}");
    }
}

#[test]
fn names_and_source_lines_are_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let source = "namespace shop { struct Order { __attribute__((noinline)) int price(int x) { \
                  asm volatile(\"\"); return x; } }; }\n\
                  template <class T> __attribute__((noinline)) T twice(T x) {\n\
                  asm volatile(\"\"); return x + x; }\n\
                  int main(int n, char **) { return shop::Order().price(n) + twice(n); }\n";
    fs::write(dir.path().join("p.cc"), source).unwrap();
    let compiled = Command::new("clang++-19")
        .args([
            "-g",
            "-O1",
            "-fxray-instrument",
            "-fxray-instruction-threshold=1",
        ])
        .args(["-fno-xray-link-deps", "p.cc", "-o", "p"])
        .current_dir(dir.path())
        .status();
    let compiled = compiled.unwrap_or_else(|error| {
        panic!("cannot run clang++-19 ({error}): install the Debian package clang-19")
    });
    assert!(compiled.success());
    for (kind, name) in [("-g", "p"), ("stripped", "bare")] {
        if kind == "stripped" {
            let program = fs::read(dir.path().join("p")).unwrap();
            fs::write(dir.path().join(name), program).unwrap();
            let stripped = Command::new("strip")
                .arg(name)
                .current_dir(dir.path())
                .status();
            assert!(stripped.unwrap().success());
        }
        let log = (1..=4_u32).flat_map(|function| {
            let call = |kind, tsc| Record {
                tid: 7,
                cpu: 0,
                tsc,
                what: EventKind::Call(kind, function),
            };
            let at = u64::from(function) * 1000;
            [
                call(FunctionKind::Enter, at),
                call(FunctionKind::Exit, at + 50),
            ]
        });
        fs::write(dir.path().join("log"), yaml(&log.collect::<Vec<_>>())).unwrap();
        for command in [
            "account log -m",
            "convert -f yaml -y log -m",
            "convert -f trace_event -symbolize log -instr_map",
            "graph log --instr_map",
            "stack log -m",
            "extract -s",
            "extract",
            "extract -s --no-demangle",
            "extract -s --no-demangle --demangle",
            "extract -s --no-demangle=false",
            "convert -f yaml -y --no-demangle log -m",
            "account -kd log -m",
            "account -dkp 0x2 log -m",
            "account -k log -p 010 -m",
        ] {
            check(dir.path(), &format!("{command} {name}"));
        }
    }
    check(dir.path(), "extract -s p -o map.yaml");
    check(dir.path(), "account log -m map.yaml");
    check(dir.path(), "graph log -m map.yaml -v count");
    check(dir.path(), "extract map.yaml");
    check(dir.path(), "extract -s map.yaml");
}

#[test]
fn what_cannot_work_fails_alike() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log"), yaml(&random_log(1))).unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::write(dir.path().join("header"), basic_log(&[], 3)).unwrap();
    let mut damaged = basic_log(&random_log(2), 3);
    damaged[64] = 9;
    fs::write(dir.path().join("damaged"), damaged).unwrap();
    fs::write(dir.path().join("no-events"), yaml(&[])).unwrap();
    for command in [
        "convert",
        "convert log log",
        "convert nothing",
        "convert empty",
        "convert header",
        "convert damaged",
        "convert log -o /nowhere/out",
        "account log -sort=foo",
        "account log -k=2 -p x -s foo",
        "account -o",
        "account log -o -k -f",
        "account log -p +1",
        "account log -p 08",
        "frobnicate log 7",
        "convert .",
        "account log -m .",
        "fdr-dump header",
        "account log -p x",
        "account nothing",
        "account log -m nothing",
        "graph nothing",
        "graph log -m nothing",
        "graph-diff log",
        "graph-diff log nothing",
        "stack",
        "stack nothing",
        "stack -k nothing log",
        "stack no-events",
        "stack log -m nothing",
        "stack log -all",
        "stack log -stack-format=flame",
        "stack log -per-thread-stacks -aggregate-threads",
        "extract nothing",
        "extract empty",
        "fdr-dump nothing",
        "frobnicate",
    ] {
        check(dir.path(), command);
    }
}

#[test]
fn the_name_of_the_program_decides() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log"), yaml(&random_log(3))).unwrap();
    let link = dir.path().join("llvm-xray");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_xrayctl"), &link).unwrap();
    let by_link = run(Command::new(link)
        .args(["stack", "-k", "log"])
        .current_dir(dir.path()));
    let (by_option, theirs) = both(dir.path(), "stack -k log");
    assert_eq!(by_link, theirs);
    assert_eq!(by_option, theirs);
    // By its own name, the program has its own way.
    let own = Command::new(env!("CARGO_BIN_EXE_xrayctl"))
        .args(["stack", "-k", "log"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_ne!(own.stdout, theirs.0);
}

/// Checks some commands on a log, by chance.
fn check_log(seed: u64, name: &str, bytes: &[u8], count: usize) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), bytes).unwrap();
    fs::write(dir.path().join("other.yaml"), yaml(&random_log(seed + 100))).unwrap();
    let mut random = Random(seed + 1000);
    let mut commands = COMMANDS.to_vec();
    for _ in 0..count {
        let command = commands.swap_remove(random.place(commands.len()));
        let command = if command.contains("LOG") {
            command.replace("LOG", name)
        } else {
            format!("{command} {name}")
        };
        check(dir.path(), &command);
    }
}

/// Checks that both programs do the same.
#[track_caller]
fn check(dir: &Path, command: &str) {
    let (ours, theirs) = both(dir, command);
    if theirs.2.is_none() {
        // LLVM's tool has crashed.
        assert!(ours.2.is_some(), "{command}");
    } else if ours != theirs {
        // The directory is gone when the test has failed.
        let kept = keep(dir);
        assert_eq!(
            ours.2,
            theirs.2,
            "exit code of {command} in {}",
            kept.display()
        );
        assert_eq!(
            ours.1,
            theirs.1,
            "errors of {command} in {}",
            kept.display()
        );
        let [ours, theirs] = [ours, theirs].map(|(out, ..)| {
            let lines = out.split(|byte| *byte == b'\n');
            lines
                .map(|line| line.escape_ascii().to_string())
                .collect::<Vec<_>>()
        });
        let mut lines = ours.iter().zip(&theirs).enumerate();
        let other = lines.find(|(_, (ours, theirs))| ours != theirs);
        panic!(
            "{command} in {}: {} and {} lines; the first other line is {other:?}",
            kept.display(),
            ours.len(),
            theirs.len()
        );
    }
}

fn both(dir: &Path, command: &str) -> (Outcome, Outcome) {
    let args = command.split(' ').collect::<Vec<_>>();
    let ours = Command::new(env!("CARGO_BIN_EXE_xrayctl"))
        .args(["--as", "llvm-xray-19"])
        .args(&args)
        .current_dir(dir)
        .output()
        .unwrap();
    let theirs = run(Command::new("llvm-xray-19").args(&args).current_dir(dir));
    let ours = outcome(ours);
    (ours, theirs)
}

fn run(command: &mut Command) -> Outcome {
    let output = command.output().unwrap_or_else(|error| {
        panic!("cannot run {command:?} ({error}): install the Debian package llvm-19")
    });
    outcome(output)
}

fn outcome(output: std::process::Output) -> Outcome {
    let err = String::from_utf8_lossy(&output.stderr);
    // The path of the program is the only difference, and the place that LLVM's YAML reader shows.
    let err = err
        .lines()
        .skip_while(|line| {
            let is_message = line.starts_with("llvm-xray") || line.starts_with("Failed");
            err.starts_with("YAML:") && !is_message
        })
        .map(|line| line.replace("/usr/lib/llvm-19/bin/llvm-xray", "llvm-xray-19"))
        .collect::<Vec<_>>()
        .join("\n");
    (output.stdout, err, output.status.code())
}

fn keep(dir: &Path) -> PathBuf {
    let kept = std::env::temp_dir().join(format!("llvm-xray-{}", std::process::id()));
    let _ = fs::create_dir_all(&kept);
    for file in fs::read_dir(dir).unwrap() {
        let file = file.unwrap().path();
        let _ = fs::copy(&file, kept.join(file.file_name().unwrap()));
    }
    kept
}

/// A log of several threads in which exits are missing, come without entries or from tail calls.
fn random_log(seed: u64) -> Vec<Record> {
    let mut random = Random(seed * 7919 + 1);
    let threads = 1 + random.below(if seed.is_multiple_of(2) { 90 } else { 5 });
    let functions = 2 + random.below(if seed.is_multiple_of(3) { 200 } else { 12 });
    let mut stacks = Vec::new();
    for number in 0..threads {
        let tid = 1 + random.below(100_000) * 64 + number;
        stacks.push((tid, Vec::<u32>::new()));
    }
    let mut tsc = 1_000_000_u64;
    let mut log = Vec::new();
    for _ in 0..1500 {
        tsc += u64::from(random.below(5000));
        let thread = random.place(stacks.len());
        let (tid, stack) = &mut stacks[thread];
        let function = 1 + random.below(functions) * random.below(functions) / functions;
        let mut push = |what| {
            log.push(Record {
                tid: *tid,
                cpu: u8::try_from(thread % 3).unwrap(),
                tsc,
                what,
            });
        };
        match random.below(100) {
            0..45 if stack.len() < 30 => {
                stack.push(function);
                push(EventKind::Call(FunctionKind::Enter, function));
            }
            45..50 if stack.len() < 30 => {
                stack.push(function);
                push(EventKind::Call(FunctionKind::EnterArg, function));
                push(EventKind::Argument(random.next()));
            }
            // LLVM reads version 1 only if the data of events has a multiple of eight bytes.
            50..52 => push(EventKind::Custom("a 'quoted'\tevent".to_owned())),
            52..54 => push(EventKind::Typed(42, "x: [1, 2".to_owned())),
            // An exit is missing.
            54..56 => _ = stack.pop(),
            // An exit has no entry.
            56..57 => push(EventKind::Call(FunctionKind::Exit, 100_000)),
            last => {
                if let Some(function) = stack.pop() {
                    let kind = match last {
                        57..60 => FunctionKind::TailExit,
                        _ => FunctionKind::Exit,
                    };
                    push(EventKind::Call(kind, function));
                }
            }
        }
    }
    log
}

fn yaml(log: &[Record]) -> Vec<u8> {
    let mut text = String::from(
        "---\nheader:\n  version: 1\n  type: 0\n  constant-tsc: true\n  nonstop-tsc: false\n  \
         cycle-frequency: 2601000000\nrecords:\n",
    );
    let mut log = log.iter().peekable();
    while let Some(Record {
        tid,
        cpu,
        tsc,
        what,
    }) = log.next()
    {
        let (kind, function, event_type, data) = match what {
            EventKind::Argument(_) => continue,
            EventKind::Call(kind, function) => {
                let kind = match kind {
                    FunctionKind::Enter => "function-enter",
                    FunctionKind::Exit => "function-exit",
                    FunctionKind::TailExit => "function-tail-exit",
                    FunctionKind::EnterArg => "function-enter-arg",
                };
                (kind, *function, 0, "")
            }
            EventKind::Custom(data) => ("custom-event", 0, 0, &**data),
            EventKind::Typed(number, data) => ("typed-event", 0, *number, &**data),
        };
        let _ = write!(
            text,
            "  - {{ type: {event_type}, func-id: {function}, function: '{function}', "
        );
        if let Some(EventKind::Argument(value)) = log.peek().map(|next| &next.what) {
            let _ = write!(text, "args: [ {value} ], ");
        }
        let data = data.replace('\'', "''");
        let _ = writeln!(
            text,
            "cpu: {cpu}, thread: {tid}, process: 5, kind: {kind}, tsc: {tsc}, data: '{data}' }}"
        );
    }
    text.push_str("...\n");
    text.into_bytes()
}

fn basic_log(log: &[Record], version: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header::new(LogType::Basic, version, 5678);
    header.write(&mut bytes).unwrap();
    let mut entered = 0;
    for record in log {
        let owner = |function: u32| Owner {
            function: function.cast_signed(),
            tid: record.tid,
            // Old runtimes leave the field of the process undefined.
            pid: Some(77),
        };
        let stored = match record.what {
            EventKind::Call(kind, function) => {
                entered = function;
                basic::Record::Function {
                    kind,
                    cpu: record.cpu,
                    tsc: record.tsc,
                    owner: owner(function),
                }
            }
            EventKind::Argument(value) => basic::Record::Argument {
                value,
                owner: owner(entered),
            },
            EventKind::Custom(_) | EventKind::Typed(..) => continue,
        };
        stored.write(ByteOrder::Little, &mut bytes).unwrap();
    }
    bytes
}

/// The log in buffers, each with the records of one thread; their times are in no order.
fn fdr_log(log: &[Record], version: u16, seed: u64) -> Vec<u8> {
    const BUFFER: usize = 4 << 10;
    let mut random = Random(seed + 5);
    let mut header = Header::new(LogType::Fdr, version, 2_000_000_000);
    if version == 1 {
        header.free_form[..8].copy_from_slice(&(BUFFER as u64).to_le_bytes());
    }
    let mut all = Vec::new();
    header.write(&mut all).unwrap();
    for chunk in log.chunks(60) {
        let mut threads = chunk.iter().map(|record| record.tid).collect::<Vec<_>>();
        threads.sort_unstable();
        threads.dedup();
        for tid in threads {
            let records = chunk.iter().filter(|record| record.tid == tid);
            let mut bytes = fdr_buffer(&header, tid, records.cloned(), &mut random);
            if version == 1 {
                bytes.resize(BUFFER, 0);
            } else {
                let mut extents = fdr::Writer::new(Vec::new(), header).unwrap();
                let size = bytes.len() as u64;
                extents
                    .record(&fdr::Record::BufferExtents { size })
                    .unwrap();
                all.extend_from_slice(&extents.into_inner()[32..]);
            }
            all.extend_from_slice(&bytes);
        }
    }
    all
}

fn fdr_buffer(
    header: &Header,
    tid: u32,
    records: impl Iterator<Item = Record>,
    random: &mut Random,
) -> Vec<u8> {
    let version = header.version;
    let mut writer = fdr::Writer::new(Vec::new(), *header).unwrap();
    let mut put = |record: &fdr::Record<&[u8]>| writer.record(record).unwrap();
    put(&fdr::Record::NewBuffer {
        tid: tid.cast_signed(),
    });
    put(&fdr::Record::WallTime {
        seconds: 100 + u64::from(random.below(5)),
        micros: random.below(5),
    });
    if version >= 3 {
        put(&fdr::Record::Pid { pid: 4321 });
    }
    let mut last = None;
    // An argument follows its entry in the same buffer.
    for record in records.skip_while(|record| matches!(record.what, EventKind::Argument(_))) {
        let mut since = record.tsc - last.unwrap_or(record.tsc);
        match random.below(20) {
            _ if last.is_none() => {
                let cpu = record.cpu.into();
                put(&fdr::Record::NewCpu {
                    cpu,
                    tsc: record.tsc,
                });
            }
            0 if !matches!(record.what, EventKind::Argument(_)) => {
                put(&fdr::Record::TscWrap { tsc: record.tsc });
                since = 0;
            }
            _ => {}
        }
        last = Some(record.tsc);
        let delta = u32::try_from(since).unwrap();
        match &record.what {
            EventKind::Call(kind, function) => put(&fdr::Record::Function {
                kind: *kind,
                function: *function,
                delta,
            }),
            EventKind::Argument(value) => put(&fdr::Record::CallArgument { value: *value }),
            EventKind::Custom(data) if version >= 5 => put(&fdr::Record::CustomEventDelta {
                delta: delta.cast_signed(),
                data: data.as_bytes(),
            }),
            EventKind::Custom(data) => put(&fdr::Record::CustomEvent {
                tsc: record.tsc,
                cpu: if version == 4 { 3 } else { 0 },
                data: data.as_bytes(),
            }),
            EventKind::Typed(number, data) => put(&fdr::Record::TypedEvent {
                delta: delta.cast_signed(),
                event_type: *number,
                data: data.as_bytes(),
            }),
        }
    }
    if version == 1 {
        put(&fdr::Record::EndOfBuffer);
    }
    // Behind the header that the writer has written.
    writer.into_inner()[32..].to_vec()
}

// === impl Random ===

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u32) -> u32 {
        u32::try_from((self.next() >> 16) % u64::from(limit)).unwrap()
    }

    /// A place in a list of this length.
    fn place(&mut self, len: usize) -> usize {
        usize::try_from((self.next() >> 16) % len as u64).unwrap()
    }
}
