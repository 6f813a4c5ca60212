//! Sleds as compilers write them: `classify` takes every kind for compiled. The test finds the
//! sleds through the instrumentation map of a small library, and runs none of them.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::{collections::BTreeMap, path::Path, process::Command};

use goblin::elf::Elf;
use sled_encoders::{
    SledKind, aarch64,
    x86_64::{MAX_SLED_BYTES, SLED_BYTES, State, TailJump, classify, tail_jump},
};

/// Returns, plain and conditional tail calls, a function whose first argument is logged, and events
/// with their arguments in place, swapped, and elsewhere. Calls of the builtin with a `size_t` make
/// clang 14 fail an assertion.
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

/// For AArch64: tail calls of every form, and a function whose first argument is logged.
const C_AARCH64: &str = r"
int outer(int);
int (*table[4])(int);
int plain(int x) { return outer(x + 1); }
int indirect(int x) { return table[x & 3](x); }
void conditional(int x) { if (x > 3) outer(x); }
int returns(int x) { return x > 3 ? outer(x) * 2 : x; }
__attribute__((xray_always_instrument, xray_log_args(1))) int logged(int x) { return outer(x) + 1; }
";

const RUST: &str = r#"
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leaf(x: u32) -> u32 { x.wrapping_mul(3) ^ 5 }
#[unsafe(no_mangle)]
pub extern "C" fn caller(x: &mut u32, f: extern "C" fn(u32) -> u32) { *x = f(*x) + leaf(*x); }
"#;

/// One sled of a library.
#[derive(Debug)]
struct Found {
    kind: SledKind,
    address: u64,
    /// The bytes of the sled and of the instruction behind it.
    bytes: Vec<u8>,
}

/// More than the longest sled and the instruction behind it.
const FOUND_BYTES: usize = 40;

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
        // With optimisation for size, tail calls depend on conditional jumps.
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

/// The sleds of the instrumentation map, version 2: 32 bytes each, with addresses relative to
/// themselves.
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
        Found {
            kind,
            address,
            bytes: file[at..file.len().min(at + FOUND_BYTES)].to_vec(),
        }
    });
    entries.collect()
}

/// Checks that every sled is as compiled, and returns the number of sleds of each kind.
fn check(sleds: &[Found]) -> BTreeMap<SledKind, usize> {
    let mut kinds = BTreeMap::new();
    for sled in sleds {
        let bytes = sled.bytes.first_chunk::<MAX_SLED_BYTES>().unwrap();
        assert_eq!(
            classify(sled.kind, sled.address, bytes),
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
    tails
        .map(|sled| tail_jump(&sled.bytes[SLED_BYTES..]))
        .collect()
}

#[test]
fn clang_19_writes_every_kind_and_plain_tail_jumps() {
    let sleds = sleds(&clang(19));
    let kinds = check(&sleds);
    // All kinds but that of LLVM 5.
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
    // All kinds but that of LLVM 5.
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

/// A library of AArch64, with clang 19; `more` on its command line.
fn clang_aarch64(more: &[&str]) -> Vec<u8> {
    let mut arguments = vec![
        "--target=aarch64-linux-gnu",
        "-fuse-ld=lld-19",
        "-Os",
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-Wl,--unresolved-symbols=ignore-all",
        "-fxray-instrument",
        "-fxray-instruction-threshold=1",
        "-fno-xray-link-deps",
    ];
    arguments.extend(more);
    let packages = "the Debian packages clang-19 and lld-19: apt-get install clang-19 lld-19";
    build("clang-19", packages, &arguments, C_AARCH64, "c")
}

/// The instruction right behind the sled, as a word.
fn word_after(sled: &Found) -> u32 {
    let bytes = sled.bytes[aarch64::SLED_BYTES..].first_chunk().unwrap();
    u32::from_le_bytes(*bytes)
}

#[test]
fn clang_19_writes_sleds_of_aarch64() {
    for more in [&[][..], &["-mbranch-protection=standard"]] {
        let sleds = sleds(&clang_aarch64(more));
        let mut kinds = BTreeMap::<_, usize>::new();
        let mut after = Vec::new();
        for sled in &sleds {
            let bytes = sled.bytes.first_chunk().unwrap();
            let state = aarch64::classify(sled.address, bytes);
            assert_eq!(state, aarch64::State::Compiled, "{sled:x?}");
            assert_eq!(sled.address % 4, 0, "{sled:x?}");
            *kinds.entry(sled.kind).or_default() += 1;
            if sled.kind == SledKind::Exit {
                after.push(aarch64::after(&sled.bytes[aarch64::SLED_BYTES..]));
            }
        }
        // A tail call has the kind of an exit before LLVM 21, also where a condition stands before
        // it.
        assert_eq!(kinds[&SledKind::Entry], 4, "{kinds:?}");
        assert_eq!(kinds[&SledKind::EntryArgument], 1, "{kinds:?}");
        let count = |expected| after.iter().filter(|after| **after == expected).count();
        let tails_and_returns = (
            count(aarch64::After::TailJump),
            count(aarch64::After::Return),
        );
        assert_eq!(tails_and_returns, (3, 3), "{more:?}: {after:?}");
        assert_eq!(after.len(), 6, "none is of another form");
    }
}

#[test]
fn indirect_tail_calls_of_aarch64_go_through_a_register_that_the_sled_keeps() {
    // With branch protection clang takes x16 or x17, which the runtime's own sled overwrites.
    let sleds = sleds(&clang_aarch64(&["-mbranch-protection=standard"]));
    let registers: Vec<u32> = sleds
        .iter()
        .map(word_after)
        .filter(|word| word & 0xffff_fc1f == 0xd61f_0000)
        .map(|word| word >> 5 & 31)
        .collect();
    assert!(matches!(registers[..], [16 | 17]), "{registers:?}");
}

#[test]
fn llvm_assembles_the_staged_words_of_aarch64() {
    let folder = tempfile::tempdir().unwrap();
    let assemble = |text: &str| {
        let (input, output) = (folder.path().join("sled.s"), folder.path().join("sled.bin"));
        std::fs::write(&input, text).unwrap();
        let object = folder.path().join("sled.o");
        for (tool, arguments) in [
            (
                "llvm-mc-19",
                vec![
                    "--triple=aarch64-linux-gnu".into(),
                    "--filetype=obj".into(),
                    "-o".into(),
                    object.clone().into_os_string(),
                    input.into_os_string(),
                ],
            ),
            (
                "llvm-objcopy-19",
                vec![
                    "-O".into(),
                    "binary".into(),
                    "-j".into(),
                    ".text".into(),
                    object.clone().into_os_string(),
                    output.clone().into_os_string(),
                ],
            ),
        ] {
            let run = Command::new(tool).args(arguments).output();
            let run = run.unwrap_or_else(|error| {
                panic!("{tool}: {error}; it is in the Debian package llvm-19")
            });
            assert!(
                run.status.success(),
                "{}",
                String::from_utf8_lossy(&run.stderr)
            );
        }
        read(&output)
    };
    let (sled, near, far) = (0x1_0000_0000, 0x1_0000_4000, 0x7f12_3456_7890);
    let rows = [
        (
            near,
            "str x30, [sp, #-16]!; nop; bl .+0x3ff4; ldr x30, [sp], #16; nop; nop; nop",
        ),
        (
            far,
            "stp x16, x30, [sp, #-16]!; ldr x16, .+12; blr x16; b .+12; .xword 0x7f1234567890; ldp x16, x30, [sp], #16",
        ),
    ];
    for (trampoline, text) in rows {
        let staging = aarch64::stage(sled, trampoline).unwrap();
        assert_eq!(
            staging.bytes(),
            assemble(&format!("{}\n", text.replace("; ", "\n"))),
            "{text}"
        );
    }
    let switch = aarch64::switch();
    assert_eq!([switch.off, switch.on].concat(), assemble("b .+32\nnop\n"));
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
