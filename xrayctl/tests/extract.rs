//! `xrayctl extract` beside `llvm-xray extract`, on files made by clang.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[expect(dead_code, reason = "traces are for other tests")]
mod common;

use common::{command, xrayctl};

const PROGRAM: &str = r#"
__attribute__((noinline)) static int hidden(int x) { __asm__ volatile(""); return x + 1; }
__attribute__((noinline, xray_always_instrument, xray_log_args(1))) int logged(int x) { __asm__ volatile(""); return x; }
int main(int c, char **v) { return hidden(c) + logged(c); }
"#;

const EVENTS: &str = r#"
__attribute__((xray_never_instrument)) void __xray_CustomEvent(const char *p, unsigned long n) {}
__attribute__((xray_never_instrument)) void __xray_TypedEvent(unsigned long t, const char *p, unsigned long n) {}
void f(void) { __xray_customevent("a", 1); __xray_typedevent(7, "b", 1); }
int main(void) { return 0; }
"#;

const NO_MAP: &str = "no xray_instr_map section: not compiled with -fxray-instrument";

/// Fails the test unless the tool succeeds. Returns the tool's output.
fn tool(program: &str, package: &str, args: &[&str], dir: &Path) -> String {
    let output = Command::new(program).args(args).current_dir(dir).output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot run {program}: {error}; install it with: apt-get install {package}")
    });
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {err}");
    String::from_utf8(output.stdout).unwrap()
}

fn compile(dir: &Path, source: &str, out: &str, more: &[&str]) -> PathBuf {
    fs::write(dir.join("p.c"), source).unwrap();
    let args = [
        "-O2",
        "-fxray-instrument",
        "-fxray-instruction-threshold=1",
        "-fno-xray-link-deps",
        "p.c",
        "-o",
        out,
    ];
    tool("clang-19", "clang-19", &[&args, more].concat(), dir);
    dir.join(out)
}

fn llvm(dir: &Path, args: &[&str]) -> String {
    tool(
        "llvm-xray-19",
        "llvm-19",
        &[&["extract"], args].concat(),
        dir,
    )
}

/// Checks that both print the same with these options.
#[track_caller]
fn check(dir: &Path, file: &str, options: &[&str]) {
    let expected = llvm(dir, &[&[file], options].concat());
    let mut ours = command([&["extract", file], options].concat());
    let ours = ours.current_dir(dir).output().unwrap();
    let err = String::from_utf8(ours.stderr).unwrap();
    assert_eq!((ours.status.code(), err.as_str()), (Some(0), ""), "{file}");
    let out = String::from_utf8(ours.stdout).unwrap();
    assert_eq!(out, expected, "{file} {options:?}");
}

const SPELLINGS: [&[&str]; 7] = [
    &[],
    &["-s"],
    &["--symbolize"],
    &["--symbolize", "--no-demangle"],
    &["-s", "--demangle"],
    &["-o", "-"],
    &["--output=-", "-s"],
];

#[test]
fn extract_instrmap() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), PROGRAM, "p", &["-no-pie", "-fno-pie"]);
    for options in SPELLINGS {
        check(dir.path(), "p", options);
    }
}

#[test]
fn extract_instrmap_pie() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), PROGRAM, "p", &["-pie", "-fPIE"]);
    for options in SPELLINGS {
        check(dir.path(), "p", options);
    }
}

#[test]
fn extract_instrmap_symbolize() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, "p", &["-g"]);
    check(dir.path(), "p", &["-s"]);
    let ran = xrayctl(["extract", "-s", program.to_str().unwrap()]);
    for name in ["hidden", "logged", "main"] {
        assert!(
            ran.out.contains(&format!("function-name: {name},")),
            "{}",
            ran.out
        );
    }
}

#[test]
fn extract_instrmap_macho() {
    let dir = tempfile::tempdir().unwrap();
    let source = PROGRAM.replace("xray_log_args(1)", "noinline");
    for processor in ["x86_64", "arm64"] {
        let target = format!("--target={processor}-apple-macos13");
        compile(dir.path(), &source, "p.o", &[&target, "-c"]);
        let link = "-platform_version macos 13 13 -undefined dynamic_lookup -e _main p.o -o p";
        let link: Vec<_> = ["-arch", processor]
            .into_iter()
            .chain(link.split(' '))
            .collect();
        tool("ld64.lld-19", "lld-19", &link, dir.path());
        for options in SPELLINGS {
            check(dir.path(), "p", options);
        }
    }
}

/// `llvm-xray` cannot read a program with a typed event so far.
#[test]
fn extract_all_sledtypes() {
    let dir = tempfile::tempdir().unwrap();
    let events = compile(dir.path(), EVENTS, "events", &[]);
    let ran = xrayctl(["extract", events.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let program = compile(dir.path(), PROGRAM, "program", &[]);
    let other = xrayctl(["extract", program.to_str().unwrap()]);
    for (kind, count, text) in [
        ("function-enter", 2, &ran.out),
        ("function-exit", 2, &ran.out),
        ("custom-event", 1, &ran.out),
        ("typed-event", 1, &ran.out),
        ("log-args-enter", 1, &other.out),
    ] {
        let found = text.matches(&format!("kind: {kind},")).count();
        assert_eq!(found, count, "{kind} in {text}");
    }
}

#[test]
fn bad_instrmap_sizes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("p.s"),
        ".globl _start\n_start: ret\n.section xray_instr_map,\"a\",@progbits\n.zero 31\n",
    )
    .unwrap();
    tool(
        "clang-19",
        "clang-19",
        &["-nostdlib", "p.s", "-o", "p"],
        dir.path(),
    );
    refused(
        &dir.path().join("p"),
        "xray_instr_map has 0x1f bytes, which is not a multiple of 32",
    );
}

#[test]
fn no_such_file() {
    let dir = tempfile::tempdir().unwrap();
    refused(
        &dir.path().join("no-such-file"),
        "No such file or directory (os error 2)",
    );
}

#[test]
fn empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    fs::write(&path, "").unwrap();
    refused(
        &path,
        "neither an object file (ELF, Mach-O) nor an instrumentation map in YAML",
    );
    refused(Path::new("/dev/zero"), "not a regular file");
}

#[test]
fn no_instr_map() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.c"), "int main(void) { return 0; }\n").unwrap();
    tool("clang-19", "clang-19", &["p.c", "-o", "p"], dir.path());
    refused(&dir.path().join("p"), NO_MAP);
}

/// The option takes precedence over the attribute.
#[test]
fn clang_no_xray_instrument() {
    let dir = tempfile::tempdir().unwrap();
    let object = compile(dir.path(), PROGRAM, "p.o", &["-c", "-fno-xray-instrument"]);
    refused(&object, NO_MAP);
}

/// The compiler takes lists of functions.
#[test]
fn always_never_instrument() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("always.txt"), "fun:main\n").unwrap();
    fs::write(dir.path().join("never.txt"), "fun:hidden*\n").unwrap();
    let lists = [
        "-fxray-always-instrument=always.txt",
        "-fxray-never-instrument=never.txt",
        "-fxray-instruction-threshold=1000",
        "-Wno-deprecated",
    ];
    let source = PROGRAM.replace("static int hidden", "int hidden");
    let program = compile(dir.path(), &source, "p", &lists);
    check(dir.path(), "p", &["-symbolize"]);
    let map = xrayctl(["extract", "-symbolize", program.to_str().unwrap()]).out;
    assert!(
        map.contains("always-instrument: true, function-name: main,"),
        "{map}"
    );
    assert!(!map.contains("hidden"), "{map}");
}

/// A file that `llvm-xray` does not support.
#[test]
fn unsupported_elf32() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--target=mips-linux-gnu", "-c"];
    let source = PROGRAM.replace("xray_log_args(1)", "noinline");
    let object = compile(dir.path(), &source, "p.o", &more);
    let ran = xrayctl(["extract", "-s", object.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let of = |name: &str| format!("function-name: {name}, version: 2 }}");
    for name in ["hidden", "logged", "main"] {
        assert_eq!(ran.out.matches(&of(name)).count(), 2, "{}", ran.out);
    }
    assert_eq!(ran.out.matches("function-enter").count(), 3, "{}", ran.out);
}

#[test]
fn a_map_in_yaml_is_read_back_with_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, "p", &[]);
    let yaml = dir.path().join("map.yaml");
    let (program, map) = (program.to_str().unwrap(), yaml.to_str().unwrap());
    let ran = xrayctl(["extract", program, "-s", "-o", map]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    let first = fs::read_to_string(&yaml).unwrap();
    assert_eq!(xrayctl(["extract", "-s", map]).out, first);
    // `llvm-xray` reads the map too, except for the names.
    check(dir.path(), "map.yaml", &[]);
    let again = xrayctl(["extract", program, "-o", map]);
    assert_eq!(again.code, 1, "{}", again.out);
    assert!(again.err.contains("--force replaces it"), "{}", again.err);
    assert_eq!(fs::read_to_string(&yaml).unwrap(), first);
    assert_eq!(
        xrayctl(["extract", program, "--output", map, "--force"]).code,
        0
    );
    assert_ne!(fs::read_to_string(&yaml).unwrap(), first);
}

#[test]
fn json_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, "p", &[]);
    let ran = xrayctl(["extract", "--json", program.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["machine"], "x86-64");
    assert_eq!(json["warnings"], serde_json::json!([]));
    let yaml = llvm(dir.path(), &["-s", "p"]);
    let mut lines = yaml.lines().filter(|line| line.starts_with("- "));
    for function in json["functions"].as_array().unwrap() {
        for sled in function["sleds"].as_array().unwrap() {
            let line = format!(
                "- {{ id: {}, address: 0x{:X}, function: 0x{:X}, kind: {}, always-instrument: {}, function-name: {}, version: {} }}",
                function["id"],
                sled["address"].as_u64().unwrap(),
                function["address"].as_u64().unwrap(),
                sled["kind"].as_str().unwrap(),
                sled["always_instrument"],
                function["name"].as_str().unwrap(),
                sled["version"],
            );
            assert_eq!(lines.next(), Some(line.as_str()));
        }
    }
    assert_eq!(lines.next(), None);
    assert!(json["functions"][0]["size"].as_u64().unwrap() > 0);
}

#[test]
fn the_map_of_a_process_is_that_of_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!(
        "#include <unistd.h>\n{}",
        PROGRAM.replace("return hidden", "pause(); return hidden")
    );
    let program = compile(dir.path(), &source, "p", &[]);
    let mut child = Command::new(&program).spawn().unwrap();
    let expected = xrayctl(["extract", "-s", program.to_str().unwrap()]);
    // The map can be read even when the file is deleted.
    fs::remove_file(&program).unwrap();
    let ran = xrayctl(["extract", "-s", "--pid", &child.id().to_string()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((ran.code, ran.out), (0, expected.out), "{}", ran.err);
}

const LIBRARY: &str = r#"
__attribute__((noinline)) static int inner(int x) { __asm__ volatile(""); return x + 1; }
int library(int x) { return inner(x) + 2; }
"#;

/// Starts a process with a library. The files of both are deleted and replaced once they are
/// mapped.
fn with_library(dir: &Path, main_options: &[&str]) -> Child {
    compile(dir, LIBRARY, "libl.so", &["-shared", "-fPIC"]);
    let source = "#include <stdio.h>\n#include <unistd.h>\nint library(int);\n\
        int main(void) { puts(\"ready\"); fflush(stdout); pause(); return library(1); }\n";
    let link = ["-L.", "-ll", "-Wl,-rpath,$ORIGIN"];
    let program = compile(dir, source, "p", &[&link, main_options].concat());
    let mut child = Command::new(&program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    child
}

#[test]
fn the_map_of_a_process_has_its_libraries() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = with_library(dir.path(), &[]);
    let pid = child.id().to_string();
    let [program, library] = ["p", "libl.so"].map(|file| {
        let path = dir.path().join(file);
        let yaml = xrayctl(["extract", "-s", path.to_str().unwrap()]).out;
        fs::remove_file(&path).unwrap();
        yaml
    });
    fs::write(dir.path().join("libl.so"), "another file").unwrap();
    let ran = xrayctl(["extract", "-s", "--pid", &pid]);
    let json = xrayctl(["extract", "--json", "--pid", &pid]);
    // Root may open the mapped file. Other users may open only the file at its path.
    let may_open = fs::read_dir(format!("/proc/{pid}/map_files"))
        .unwrap()
        .all(|entry| fs::File::open(entry.unwrap().path()).is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((ran.code, json.code), (0, 0), "{}{}", ran.err, json.err);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let modules = json["modules"].as_array().unwrap();
    assert_eq!(json["process"].to_string(), pid);
    if !may_open {
        assert!(ran.err.contains("CAP_CHECKPOINT_RESTORE"), "{}", ran.err);
        assert_eq!((ran.out, modules.len()), (program, 1));
        return;
    }
    // The library's functions, with ids as LLVM 20's runtime packs them.
    let packed = library
        .replace("id: 1,", "id: 16777217,")
        .replace("id: 2,", "id: 16777218,");
    assert_ne!(packed, library);
    let expected = program.replace("...\n", "") + packed.trim_start_matches("---\n");
    assert_eq!(ran.out, expected);
    let reported = format!(
        "object 1, ids from 16777217: {}/libl.so\n",
        dir.path().display()
    );
    assert!(ran.err.contains(&reported), "{}", ran.err);

    let [main, other] = &modules[..] else {
        panic!("{json}");
    };
    assert_eq!((&main["object"], &other["object"]), (&0.into(), &1.into()));
    assert_eq!(other["functions"][0]["id"], 1);
    for module in modules {
        let bias = module["load_bias"].as_u64().unwrap();
        assert_eq!(bias % 4096, 0, "{bias:x}");
        assert_eq!(module["build_id"].as_str().unwrap().len(), 40);
        assert_eq!(module["machine"], "x86-64");
    }
    let names = other["functions"].as_array().unwrap().iter();
    let names: Vec<_> = names
        .map(|function| function["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["library", "inner"]);
}

/// Object 0 is the main program, even without sleds.
#[test]
fn a_process_may_have_sleds_in_a_library_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = with_library(dir.path(), &["-fno-xray-instrument"]);
    let ran = xrayctl(["extract", "--pid", &child.id().to_string()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("- { id: 16777217, "), "{}", ran.out);
    assert!(!ran.out.contains("- { id: 1, "), "{}", ran.out);

    let nobody = xrayctl(["extract", "--pid", &std::process::id().to_string()]);
    assert_eq!(nobody.code, 4, "{}", nobody.err);
    let why = "has mapped no file with an instrumentation map";
    assert!(nobody.err.contains(why), "{}", nobody.err);
}

#[test]
fn odd_entries_are_reported_and_the_map_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let map = ".globl _start\n_start: ret\n.section xray_instr_map,\"a\",@progbits\n.quad _start-., _start-.\n.byte 9,0,2\n.zero 13\n";
    fs::write(dir.path().join("p.s"), map).unwrap();
    tool(
        "clang-19",
        "clang-19",
        &["-nostdlib", "-static", "p.s", "-o", "p"],
        dir.path(),
    );
    let ran = xrayctl(["extract", dir.path().join("p").to_str().unwrap()]);
    assert_eq!(ran.code, 0);
    assert!(
        ran.err.contains("1 sleds are of an unknown kind"),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("kind: unknown-9,"), "{}", ran.out);
}

/// The line in the help is a printed line.
#[test]
fn the_help_shows_what_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let help = xrayctl(["extract", "--help"]).out;
    // The help breaks the line at the width of the terminal.
    let (_, line) = help.split_once("- { id:").unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let map = dir.path().join("map.yaml");
    let line = format!("- {{ id: {}", words.join(" "));
    fs::write(&map, format!("---\n{line}\n...\n")).unwrap();
    let ran = xrayctl(["extract", "-s", map.to_str().unwrap()]);
    assert_eq!(ran.out, fs::read_to_string(&map).unwrap(), "{}", ran.err);
}

#[track_caller]
fn refused(path: &Path, why: &str) {
    let ran = xrayctl(["extract", path.to_str().unwrap()]);
    let expected = format!("xrayctl: cannot read {}: {why}\n", path.display());
    assert_eq!((ran.code, ran.err), (1, expected));
}
