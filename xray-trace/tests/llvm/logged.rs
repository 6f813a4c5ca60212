//! A program that LLVM's own runtime logs, for the tests of this crate and of crates that use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// The threads have ended when the log is written, because basic mode may write nothing of others.
/// In each thread `outer` calls `leaf` a hundred times, with user events at intervals.
const PROGRAM: &str = r#"
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <xray/xray_interface.h>
#include <xray/xray_log_interface.h>

static size_t type;

[[clang::xray_always_instrument, gnu::noinline]] void leaf(int i) {
  asm volatile("" ::"r"(i) : "memory");
}
[[clang::xray_always_instrument, clang::xray_log_args(1), gnu::noinline]] void outer(long n, int events) {
  for (long i = 0; i < n; i++) {
    if (i % 10 == 0 && events > 0)
      __xray_customevent("hello", 5);
    if (i % 10 == 5 && events > 1)
      __xray_typedevent(type, "typed!", 6);
    leaf(int(i));
  }
}
int main(int argc, char **argv) {
  std::string options = "func_duration_threshold_us=0";
  if (!strcmp(argv[1], "xray-fdr"))
    options += ":buffer_size=4096";
  if (!strcmp(argv[1], "xray-profiling"))
    options = "no_flush=false";
  int events = atoi(argv[2]);
  type = __xray_register_event_type("a type");
  if (__xray_log_select_mode(argv[1]) != XRAY_REGISTRATION_OK) return 1;
  if (__xray_log_init_mode(argv[1], options.c_str()) != XRAY_LOG_INITIALIZED) return 2;
  __xray_patch();
  int at_once = atoi(argv[3]);
  for (int i = 0; at_once == 0 && i < 2; i++)
    std::thread([&] { outer(100, events); }).join();
  std::vector<std::thread> threads;
  for (int i = 0; i < at_once; i++)
    threads.emplace_back([&] { outer(100, events); });
  for (auto &thread : threads)
    thread.join();
  if (__xray_log_finalize() != XRAY_LOG_FINALIZED) return 3;
  if (__xray_log_flushLog() != XRAY_LOG_FLUSHED) return 4;
  return 0;
}
"#;

/// The schedule of the program's threads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Threads {
    /// Two threads; the second begins after the end of the first.
    OneAfterTheOther,
    /// This number of threads at the same time.
    AtOnce(u32),
}

/// The program, compiled once for all tests.
pub(crate) fn program() -> &'static Path {
    static PROGRAM_DIR: OnceLock<TempDir> = OnceLock::new();
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let dir = PROGRAM_DIR
            .get_or_init(|| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
            .path();
        fs::write(dir.join("logged.cpp"), PROGRAM).unwrap();
        // At -O1 the stack does not have the alignment that LLVM 19's trampoline for typed events
        // needs, so the trampoline crashes.
        let output = Command::new("clang++-19")
            .current_dir(dir)
            .args([
                "-O2",
                "-fxray-instrument",
                "-fxray-instruction-threshold=1000000",
            ])
            .args([
                "-fxray-ignore-loops",
                "-fxray-modes=xray-basic,xray-fdr,xray-profiling",
            ])
            .args(["-pthread", "-o", "logged", "logged.cpp"])
            .output()
            .unwrap_or_else(|error| panic!("cannot run clang++-19: {error}"));
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        dir.join("logged")
    })
}

/// Runs the program in a mode, with user events of no kind ("0"), one ("1") or both ("2"). Returns
/// its logs.
pub(crate) fn logs(mode: &str, events: &str, threads: Threads) -> (TempDir, Vec<PathBuf>) {
    let at_once = match threads {
        Threads::OneAfterTheOther => 0,
        Threads::AtOnce(threads) => threads,
    };
    let dir = tempfile::tempdir().unwrap();
    let options = format!(
        "xray_logfile_base={}/log. patch_premain=false",
        dir.path().display()
    );
    let status = Command::new(program())
        .args([mode, events, &at_once.to_string()])
        .env("XRAY_OPTIONS", options)
        .status()
        .unwrap();
    assert!(status.success(), "{mode}: {status}");
    let entries = fs::read_dir(dir.path()).unwrap();
    let mut logs = entries
        .map(|entry| entry.unwrap().path())
        .collect::<Vec<_>>();
    logs.sort();
    (dir, logs)
}
