//! Sleds as compilers write them: every kind, found through the instrumentation map of a small library, is what
//! `classify` calls compiled.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::{collections::BTreeMap, path::Path, process::Command};

use goblin::elf::Elf;
use sled_encoders::{
    SledKind,
    x86_64::{MAX_SLED_BYTES, SLED_BYTES, State, TailJump, classify, tail_jump},
};

/// Returns, plain and conditional tail calls, a function whose first argument is logged, and events with their arguments in place, swapped,
/// and elsewhere. Calls of the builtin with a `size_t` make clang 14 fail an assertion.
const C: &str = r"
int outer(int);
int plain(int x) { return outer(x + 1); }
void conditional(int x) { if (x > 3) outer(x); }
int returns(int x) { return x > 3 ? outer(x) * 2 : x; }
__attribute__((xray_always_instrument, xray_log_args(1))) int logged(int x) { return outer(x) + 1; }
void in_place(const char *p, int n) { __xray_customevent(p, n); }
void swapped(int n, const char *p) { __xray_customevent(p, n); }
int elsewhere(int a, int b, const char *p) { char s[64]; s[a & 63] = b; __xray_customevent(s, b); return s[b & 63] + *p; }
__attribute__((xray_always_instrument)) void typed(const char *p, int n, unsigned short t) { __xray_typedevent(t, p, n); }
void __xray_CustomEvent(void) {}
void __xray_TypedEvent(void) {}
";

const RUST: &str = r#"
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leaf(x: u32) -> u32 { x.wrapping_mul(3) ^ 5 }
#[unsafe(no_mangle)]
pub extern "C" fn caller(x: &mut u32, f: extern "C" fn(u32) -> u32) { *x = f(*x) + leaf(*x); }
"#;

/// What is known of one sled.
#[derive(Debug)]
struct Found {
    kind: SledKind,
    bytes: [u8; MAX_SLED_BYTES],
    address: u64,
    /// What follows a tail sled.
    jump: TailJump,
}

fn build(tool: &str, package: &str, arguments: &[&str], source: &str, extension: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join(format!("sleds.{extension}"));
    let output = folder.path().join("sleds.so");
    std::fs::write(&input, source).unwrap();
    let built = Command::new(tool)
        .args(arguments)
        .arg("-o")
        .arg(&output)
        .arg(&input)
        .env("RUSTC_BOOTSTRAP", "1")
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}; it is in {package}"));
    let messages = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{tool}: {messages}");
    read(&output)
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn clang(version: u32) -> Vec<u8> {
    let tool = format!("clang-{version}");
    let package = format!("the Debian package {tool}: apt-get install {tool}");
    let arguments = [
        // For size: then tail calls hang on conditional jumps.
        "-Os",
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-fxray-instrument",
        "-fxray-instruction-threshold=1",
        if version < 15 {
            "-fnoxray-link-deps"
        } else {
            "-fno-xray-link-deps"
        },
    ];
    build(&tool, &package, &arguments, C, "c")
}

/// The sleds of the instrumentation map, version 2: 32 bytes each, addresses relative to themselves.
fn sleds(file: &[u8]) -> Vec<Found> {
    let elf = Elf::parse(file).unwrap();
    let map = elf
        .section_headers
        .iter()
        .find(|header| elf.shdr_strtab.get_at(header.sh_name) == Some("xray_instr_map"))
        .expect("an instrumentation map");
    let content = &file[map.file_range().unwrap()];
    let entries = content.chunks_exact(32).enumerate().map(|(i, entry)| {
        assert_eq!(entry[18], 2, "version of the entry");
        let relative = u64::from_le_bytes(entry[..8].try_into().unwrap());
        let address = (map.sh_addr + 32 * i as u64).wrapping_add(relative);
        let segment = elf
            .program_headers
            .iter()
            .find(|header| {
                header
                    .vm_range()
                    .contains(&usize::try_from(address).unwrap())
            })
            .expect("the sled is loaded");
        let at = usize::try_from(address - segment.p_vaddr + segment.p_offset).unwrap();
        let kind = SledKind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == entry[16])
            .unwrap();
        let bytes = file[at..at + MAX_SLED_BYTES].try_into().unwrap();
        let jump = tail_jump(&file[at + SLED_BYTES..at + SLED_BYTES + 16]);
        Found {
            kind,
            bytes,
            address,
            jump,
        }
    });
    entries.collect()
}

/// Every sled is as compiled; says how many there are of each kind.
fn check(sleds: &[Found]) -> BTreeMap<SledKind, usize> {
    let mut kinds = BTreeMap::new();
    for sled in sleds {
        assert_eq!(
            classify(sled.kind, sled.address, &sled.bytes),
            State::Compiled,
            "{sled:x?}"
        );
        assert_eq!(sled.address % 2, 0, "{sled:x?}");
        *kinds.entry(sled.kind).or_default() += 1;
    }
    kinds
}

fn tail_jumps(sleds: &[Found]) -> Vec<TailJump> {
    let tails = sleds.iter().filter(|sled| sled.kind == SledKind::TailExit);
    tails.map(|sled| sled.jump).collect()
}

#[test]
fn clang_19_writes_every_kind_and_plain_tail_jumps() {
    let sleds = sleds(&clang(19));
    let kinds = check(&sleds);
    // All but LLVM 5's.
    assert_eq!(
        kinds.keys().copied().collect::<Vec<_>>(),
        SledKind::ALL[..6]
    );
    let jumps = tail_jumps(&sleds);
    assert!(
        jumps.len() >= 2 && jumps.iter().all(|jump| *jump == TailJump::Plain),
        "{jumps:?}"
    );
}

#[test]
fn clang_14_writes_tail_sleds_before_conditional_jumps() {
    let sleds = sleds(&clang(14));
    let kinds = check(&sleds);
    // All but LLVM 5's.
    assert_eq!(
        kinds.keys().copied().collect::<Vec<_>>(),
        SledKind::ALL[..6]
    );
    let jumps = tail_jumps(&sleds);
    assert!(jumps.contains(&TailJump::Plain), "{jumps:?}");
    assert!(
        jumps
            .iter()
            .any(|j| matches!(j, TailJump::Conditional { .. })),
        "{jumps:?}"
    );
    assert!(!jumps.contains(&TailJump::Other), "{jumps:?}");
}

#[test]
fn rustc_writes_the_same_sleds() {
    let arguments = [
        "--crate-type=cdylib",
        "--edition=2024",
        "-Copt-level=2",
        "-Zinstrument-xray=always",
    ];
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let sleds = sleds(&build(&rustc, "the Rust toolchain", &arguments, RUST, "rs"));
    let kinds = check(&sleds);
    assert!(
        kinds[&SledKind::Entry] >= 2 && kinds[&SledKind::Exit] >= 2,
        "{kinds:?}"
    );
    assert!(
        tail_jumps(&sleds)
            .iter()
            .all(|jump| *jump != TailJump::Other)
    );
}
