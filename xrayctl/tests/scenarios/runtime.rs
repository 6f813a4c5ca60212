//! Scenarios of the runtime's own tests (`compiler-rt/test/xray/TestCases/Posix`) that are about
//! the contents of a log. Programs like upstream's are compiled and run under LLVM's runtime, and
//! we read their logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use xray_trace::llvm::Mode;
use xray_trace::llvm::profile::Reader;

use crate::support::{Files, leaves, yaml};

/// The first lines of every program.
const BEGIN: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <xray/xray_interface.h>
#include <xray/xray_log_interface.h>
#define TRACED [[clang::xray_always_instrument, gnu::noinline]]
#define TRACED_ARG [[clang::xray_always_instrument, clang::xray_log_args(1), gnu::noinline]]
#define USE(x) asm volatile("" ::"r"(x) : "memory")
static void begin(const char *mode, const char *options) {
  __xray_log_select_mode(mode);
  if (__xray_log_init_mode(mode, options) != XRAY_LOG_INITIALIZED) _exit(101);
  if (__xray_patch() != SUCCESS) _exit(102);
}
static void finalize() { if (__xray_log_finalize() != XRAY_LOG_FINALIZED) _exit(103); }
static void flush() { if (__xray_log_flushLog() != XRAY_LOG_FLUSHED) _exit(104); }
"#;

/// An event of a log: process, thread, kind, function, argument.
type Seen = (u64, u64, String, String, Option<u64>);

/// A program, compiled as `program`.
struct Program(Files);

impl Program {
    fn new(source: &str, flags: &[&str]) -> Self {
        let files = Files::new(&[("program.cc", format!("{BEGIN}{source}"))]);
        let output = Command::new("clang++-19")
            .args([
                "-O2",
                "-fxray-instrument",
                "-pthread",
                "program.cc",
                "-o",
                "program",
            ])
            .args(flags)
            .current_dir(files.path())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("cannot run clang++-19 ({error}): install the Debian package clang-19")
        });
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
        Self(files)
    }

    /// Runs the program. Returns its output and its logs, oldest first.
    fn run(&self, args: &[&str], options: &str) -> (String, Vec<PathBuf>) {
        let logs = || {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            let is_log = |path: &PathBuf| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with("log.")
            };
            let mut logs: Vec<_> = paths.filter(is_log).collect();
            logs.sort_by_key(|log| fs::metadata(log).unwrap().modified().unwrap());
            logs
        };
        for log in logs() {
            fs::remove_file(log).unwrap();
        }
        let output = Command::new("./program")
            .args(args)
            .current_dir(self.0.path())
            .env("XRAY_OPTIONS", format!("xray_logfile_base=log. {options}"))
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {err}", output.status);
        (String::from_utf8(output.stdout).unwrap(), logs())
    }

    /// Runs the program for one log, `log`. Returns its output and the events of the log, in order
    /// of time.
    fn events(&self, args: &[&str], options: &str) -> (String, Vec<Seen>) {
        let (out, logs) = self.run(args, options);
        let [log] = &logs[..] else {
            panic!("{logs:?}");
        };
        fs::rename(log, self.0.path().join("log")).unwrap();
        let lines = self.0.path().join("events.jsonl");
        let _ = fs::remove_file(&lines);
        self.0.ours_out("convert -m program log -o events.jsonl");
        let events = fs::read_to_string(lines).unwrap();
        let events = events.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            let number = |key: &str| line[key].as_u64();
            (
                number("pid").unwrap(),
                number("tid").unwrap(),
                text("event"),
                text("function"),
                line["arguments"][0].as_u64(),
            )
        });
        (out, events.filter(|event| event.2 != "processor").collect())
    }
}

/// `+f` for an entry, `-f` for an exit of either kind, by thread.
fn by_thread(events: &[Seen]) -> BTreeMap<u64, String> {
    let mut threads = BTreeMap::<u64, Vec<String>>::new();
    for (_, tid, event, function, _) in events {
        let sign = if event == "enter" { '+' } else { '-' };
        let name = function.split('(').next().unwrap();
        threads
            .entry(*tid)
            .or_default()
            .push(format!("{sign}{name}"));
    }
    let threads = threads.into_iter();
    threads
        .map(|(tid, events)| (tid, events.join(" ")))
        .collect()
}

#[test]
fn fdr_single_thread() {
    let program = Program::new(
        "TRACED void fn() { asm volatile(\"\"); }
         int main() { begin(\"xray-fdr\", \"func_duration_threshold_us=0\"); fn(); __xray_unpatch(); finalize(); flush(); }",
        &[],
    );
    let (_, events) = program.events(&[], "");
    let [enter, exit] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((&*enter.2, &*enter.3), ("enter", "fn()"));
    assert_eq!((&*exit.2, &*exit.3), ("exit", "fn()"));
    assert_eq!((enter.0, enter.1), (exit.0, exit.1));
    program.0.same("graph log -m program -e sum -v sum");
}

/// Two threads, an argument, an end before the program's end, and a threshold that leaves only the
/// call with an argument.
#[test]
fn fdr_mode() {
    let program = Program::new(
        "static thread_local int var;
         TRACED void fC() { ++var; USE(&var); }
         TRACED void fB() { fC(); USE(&var); }
         TRACED void fA() { fB(); USE(&var); }
         TRACED_ARG void fArg(long n) { USE(n); }
         static void *other(void *) { fC(); fB(); fA(); fArg(1); return 0; }
         int main(int, char **argv) {
           begin(\"xray-fdr\", argv[1]);
           fA(); fC(); fB(); fA(); fC();
           pthread_t thread;
           pthread_create(&thread, 0, other, 0);
           pthread_join(thread, 0);
           finalize();
           fC();
           printf(\"%d\", var);
           flush();
         }",
        &[],
    );
    let (out, events) = program.events(
        &["buffer_size=16384:buffer_max=10:func_duration_threshold_us=0"],
        "",
    );
    assert_eq!(out, "6");
    let (a, b, c) = ("+fA +fB +fC -fC -fB -fA", "+fB +fC -fC -fB", "+fC -fC");
    let threads: BTreeSet<_> = by_thread(&events).into_values().collect();
    let main = [a, c, b, a, c].join(" ");
    let other = [c, b, a, "+fArg -fArg"].join(" ");
    assert_eq!(threads, [main, other].into());
    let arguments: Vec<_> = events.iter().filter_map(|event| event.4).collect();
    assert_eq!(arguments, [1]);
    program
        .0
        .same_lines("graph log -m program -e count -v count");
    let (_, events) = program.events(&["func_duration_threshold_us=5000"], "");
    let left: Vec<_> = events
        .iter()
        .map(|event| (&*event.2, &*event.3, event.4))
        .collect();
    assert_eq!(
        left,
        [
            ("enter", "fArg(long)", Some(1)),
            ("exit", "fArg(long)", None)
        ]
    );
}

/// The order of the buffers in the file does not matter.
#[test]
fn fdr_thread_order() {
    let program = Program::new(
        "TRACED void f1() { for (volatile int i = 0; i < 1 << 16; i++); }
         TRACED void f2() { for (volatile int i = 0; i < 1 << 16; i++); }
         static void *one(void *) { f1(); return 0; }
         static void *two(void *) { f2(); return 0; }
         int main() {
           begin(\"xray-fdr\", \"func_duration_threshold_us=0\");
           pthread_t a, b;
           pthread_create(&a, 0, one, 0); pthread_create(&b, 0, two, 0);
           pthread_join(a, 0); pthread_join(b, 0);
           finalize(); flush();
         }",
        &[],
    );
    let (_, events) = program.events(&[], "");
    let threads: BTreeSet<_> = by_thread(&events).into_values().collect();
    assert_eq!(threads, ["+f1 -f1".to_owned(), "+f2 -f2".to_owned()].into());
    program.0.same_lines("graph log -m program -e count");
    // llvm-xray's account needs all records in one order of time.
    let out = program.0.ours_out("account log -m program -f csv");
    assert!(out.contains("\n1,1,") && out.contains("\n2,1,"), "{out}");
}

/// Short and deep calls are not in the log.
#[test]
fn basic_filtering() {
    let program = Program::new(
        "TRACED void filtered() { asm volatile(\"\"); }
         TRACED void beyond_stack() { asm volatile(\"\"); }
         TRACED void always_shows() { struct timespec time = {0, 2000000}; nanosleep(&time, 0); beyond_stack(); asm volatile(\"\"); }
         [[clang::xray_always_instrument]] int main() { filtered(); always_shows(); }",
        &[],
    );
    for options in [
        "patch_premain=true xray_mode=xray-basic xray_naive_log_func_duration_threshold_us=1000 xray_naive_log_max_stack_depth=2",
        "patch_premain=true xray_mode=xray-basic xray_naive_log_func_duration_threshold_us=1000:xray_naive_log_max_stack_depth=2",
    ] {
        let (_, events) = program.events(&[], options);
        let threads: Vec<_> = by_thread(&events).into_values().collect();
        assert_eq!(threads, ["+main +always_shows -always_shows -main"]);
        program.0.same_lines("graph log -m program -e sum");
        program.0.same("account log -f csv");
    }
}

/// The child writes the parent's unwritten data once more. Each has its own process, thread and
/// argument.
#[test]
fn fork_basic_logging() {
    let program = Program::new(
        "#include <sys/syscall.h>
         #include <sys/wait.h>
         TRACED_ARG void print_parent_tid(long tid) { printf(\"parent %ld\\n\", tid); fflush(stdout); }
         TRACED_ARG void print_child_tid(long tid) { printf(\"child %ld\\n\", tid); fflush(stdout); }
         TRACED int both(bool child) { long tid = syscall(SYS_gettid); child ? print_child_tid(tid) : print_parent_tid(tid); return 1; }
         int main() {
           if (!fork()) return !both(true);
           wait(0);
           return !both(false);
         }",
        &[],
    );
    let options =
        "patch_premain=true xray_mode=xray-basic xray_naive_log_func_duration_threshold_us=0";
    let (out, logs) = program.run(&[], options);
    let printed: BTreeMap<&str, u64> = out
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(who, tid)| (who, tid.parse().unwrap()))
        .collect();
    let mut seen = BTreeSet::new();
    for log in logs {
        let log = log.file_name().unwrap().to_str().unwrap().to_owned();
        program
            .0
            .ours_out(&format!("convert -m program {log} -o events.csv --force"));
        let events = fs::read_to_string(program.0.path().join("events.csv")).unwrap();
        let mut lines = events.lines();
        let columns: Vec<_> = lines.next().unwrap().split(',').collect();
        let column = |name: &str| columns.iter().position(|column| *column == name).unwrap();
        for line in lines {
            let fields: Vec<_> = line.split(',').collect();
            let field = |name: &str| fields[column(name)];
            if field("event") == "enter" && !field("arguments").is_empty() {
                let tid: u64 = field("tid").parse().unwrap();
                assert_eq!(field("arguments"), field("tid"));
                assert_eq!(field("pid"), field("tid"));
                seen.insert((field("function").split('(').next().unwrap().to_owned(), tid));
            }
        }
    }
    let expected = [
        ("print_child_tid".to_owned(), printed["child"]),
        ("print_parent_tid".to_owned(), printed["parent"]),
    ];
    assert_eq!(seen, expected.into());
}

/// The first argument of a method is its object.
#[test]
fn arg1_logging_implicit_this() {
    let program = Program::new(
        "struct A { TRACED_ARG void f() { USE(this); } };
         int main() {
           begin(\"xray-fdr\", \"func_duration_threshold_us=0\");
           A a; a.f(); printf(\"%lu\", (unsigned long)&a);
           finalize(); flush();
         }",
        &[],
    );
    let (out, events) = program.events(&[], "");
    let arguments: Vec<_> = events.iter().filter_map(|event| event.4).collect();
    assert_eq!(arguments, [out.parse::<u64>().unwrap()]);
}

/// Everything has a section of its own, and the linker drops unused sections.
#[test]
fn pic_test() {
    let program = Program::new(
        "[[clang::xray_always_instrument]] unsigned short foo(unsigned b) { printf(\"foo\\n\"); return b + b + 5; }
         TRACED unsigned short bar(unsigned short a) { printf(\"bar\\n\"); USE(a); return foo(a) + 1; }
         TRACED void unused() { printf(\"unused\\n\"); }
         int main() { bar(10); }",
        &["-ffunction-sections", "-fdata-sections", "-fpic", "-fpie", "-Wl,--gc-sections"],
    );
    let options =
        "patch_premain=true xray_mode=xray-basic xray_naive_log_func_duration_threshold_us=0";
    let (_, events) = program.events(&[], options);
    let threads: Vec<_> = by_thread(&events).into_values().collect();
    assert!(
        threads.len() == 1 && threads[0].starts_with("+bar "),
        "{threads:?}"
    );
    program.0.same_lines("graph log -m program -e sum");
}

/// The names of a program's functions, as symbols or demangled.
#[test]
fn convert_with_debug_syms_of_a_program() {
    let program = Program::new(
        "namespace n { template <class T> struct S { TRACED void f(T t) { USE(t); } }; }
         extern \"C\" TRACED_ARG void plain(long n) { n::S<long>().f(n); USE(n); }
         int main() { plain(7); }",
        &["-g"],
    );
    let options =
        "patch_premain=true xray_mode=xray-basic xray_naive_log_func_duration_threshold_us=0";
    program.events(&[], options);
    let body = |yaml: String| {
        let head = |line: &&str| !line.starts_with("  version: ") && !line.starts_with("  type: ");
        yaml.lines().filter(head).collect::<Vec<_>>().join("\n")
    };
    for (more, name) in [
        ("", "'n::S<long>::f(long)'"),
        ("-demangle", "n::S<long>::f(long)"),
        ("-no-demangle", "_ZN1n1SIlE1fEl"),
    ] {
        let args = format!("convert log -f yaml -y -m program {more}");
        let ours = program.0.ours_out(args.trim());
        assert!(
            ours.contains(name) && ours.contains("args: [ 7 ]"),
            "{ours}"
        );
        assert_eq!(
            body(ours),
            body(program.0.theirs_out(args.trim())),
            "{args}"
        );
    }
}

/// Plain C, with all modes.
#[test]
fn c_test() {
    let files = Files::new(&[(
        "c.c",
        "__attribute__((xray_always_instrument)) void always(void) {}\nint main(void) { always(); }\n".to_owned(),
    )]);
    let compiled = Command::new("clang-19")
        .args([
            "-fxray-instrument",
            "-fxray-modes=xray-basic,xray-fdr,xray-profiling",
            "c.c",
            "-o",
            "c",
        ])
        .current_dir(files.path())
        .status()
        .unwrap();
    assert!(compiled.success());
    let options =
        "patch_premain=true:xray_mode=xray-basic:xray_naive_log_func_duration_threshold_us=0";
    let ran = Command::new("./c")
        .current_dir(files.path())
        .env("XRAY_OPTIONS", options)
        .stderr(std::process::Stdio::null())
        .status();
    assert!(ran.unwrap().success());
    let entries = fs::read_dir(files.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let log = names
        .into_iter()
        .find(|name| name.starts_with("xray-log.c."));
    let out = files.same(&format!("account -m c -f csv {}", log.unwrap()));
    assert!(
        out.contains("\n1,1,") && out.ends_with("\"always\"\n"),
        "{out}"
    );
}

/// The ids of a library's functions have the library's number in their upper bits. LLVM 19's
/// runtime does not have such numbers yet.
#[test]
fn basic_mode_dso() {
    let calls = leaves([
        (10000, 1_000_010_000, 1),
        (1_000_020_000, 1_000_020_100, 16_777_217),
    ]);
    let files = Files::new(&[("log", yaml(1_000_000_000, &calls))]);
    let out = files.same("account --format=csv --sort=funcid log");
    let mut lines = out.lines().skip(1);
    assert!(
        lines.next().unwrap().starts_with("1,1,1.000000e+00,"),
        "{out}"
    );
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("16777217,1,1.000000e-07,"),
        "{out}"
    );
}

/// The runtime has the same ids and addresses as `extract`.
#[test]
fn func_id_utils() {
    let program = Program::new(
        "TRACED void f() { asm volatile(\"\"); }
         TRACED int main() {
           for (unsigned long id = 1; id <= __xray_max_function_id(); id++)
             printf(\"%lu %lx\\n\", id, (unsigned long)__xray_function_address(id));
         }",
        &["-no-pie", "-fno-pie"],
    );
    let (out, _) = program.run(&[], "patch_premain=false");
    let map = program.0.ours_out("extract -s program");
    let entries = map
        .lines()
        .filter(|line| line.contains("kind: function-enter"));
    let mapped: Vec<_> = entries
        .map(|line| {
            let field = |name: &str| {
                let (_, rest) = line.split_once(name).unwrap();
                rest.split(',').next().unwrap().to_lowercase()
            };
            format!("{} {}", field("{ id: "), field(" function: 0x"))
        })
        .collect();
    assert_eq!(mapped.len(), 2);
    assert_eq!(out.lines().collect::<Vec<_>>(), mapped);
}

/// The paths of a profile by their number of functions, each with its calls, and the number of
/// threads.
fn paths(log: &PathBuf) -> (BTreeMap<usize, u64>, usize) {
    let mut reader = Reader::new(File::open(log).unwrap(), Mode::Strict).unwrap();
    let (mut paths, mut threads) = (BTreeMap::new(), BTreeSet::new());
    while let Some(path) = reader.next().unwrap() {
        *paths.entry(path.functions.len()).or_default() += path.calls;
        threads.insert(path.block.thread);
    }
    (paths, threads.len())
}

const PROFILED: &str = "TRACED void f2() { asm volatile(\"\"); }
    TRACED void f1() { f2(); asm volatile(\"\"); }
    TRACED void f0() { f1(); asm volatile(\"\"); }
    static void *thread(void *) { f0(); return 0; }
    static void all(int threads) {
      pthread_t ids[3];
      for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, thread, 0);
      for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
      if (!threads) f0();
    }
    int main(int, char **argv) {
      for (int i = 0; i < 2; i++) {
        begin(\"xray-profiling\", \"\");
        all(argv[1][0] - '0');
        finalize();
        f0();
        flush();
      }
    }";

/// A profile of each of two times, with the calls that ended in it.
#[test]
fn profiling_single_threaded() {
    let program = Program::new(PROFILED, &["-fxray-modes=xray-profiling"]);
    let (_, logs) = program.run(&["0"], "");
    assert_eq!(logs.len(), 2);
    for log in &logs {
        assert_eq!(paths(log), ([(1, 1), (2, 1), (3, 1)].into(), 1));
    }
}

#[test]
fn profiling_multi_threaded() {
    let program = Program::new(PROFILED, &["-fxray-modes=xray-profiling"]);
    let (_, logs) = program.run(&["3"], "");
    assert_eq!(logs.len(), 2);
    for log in &logs {
        assert_eq!(paths(log), ([(1, 3), (2, 3), (3, 3)].into(), 3));
    }
}
