//! The trampolines, instruction by instruction: the instructions that they may contain.
//! `tests/execute_aarch64` runs them, and checks that each path puts everything back.

use shm_ring::Geometry;

use super::*;
use crate::SledKind;

fn spec(ring_bytes: u64, threads: u32, tid_offset: i32) -> TrampolineSpec {
    TrampolineSpec {
        origin: 0x5555_0000_0000,
        tid_offset,
        table: 0x5555_0001_0000,
        rings: 0x7f00_0000_0000,
        geometry: Geometry::new(ring_bytes, threads).unwrap(),
    }
}

/// The smallest geometry, the default, the largest ring, the most threads.
fn specs() -> [TrampolineSpec; 4] {
    [
        spec(1 << 16, 1, -0x6d0),
        spec(1 << 20, 1024, 0x10),
        spec(1 << 30, 1024, i32::MIN),
        spec(1 << 20, 1 << 16, i32::MAX),
    ]
}

#[test]
fn they_fit_a_page_and_begin_cache_lines() {
    for spec in specs() {
        let trampolines = Trampolines::assemble(&spec).unwrap();
        assert!(trampolines.code.len() <= 4096, "{}", trampolines.code.len());
        for kind in SledKind::OF_FUNCTIONS {
            assert_eq!(trampolines.target(kind).unwrap() % 64, 0);
        }
    }
    let askew = TrampolineSpec {
        origin: 0x5555_0000_0004,
        ..specs()[0]
    };
    let refused = EncodeError::Unaligned {
        address: askew.origin,
    };
    assert_eq!(Trampolines::assemble(&askew), Err(refused));
}

#[test]
fn they_contain_nothing_but_harmless_instructions() {
    // No instruction that sets a flag (cmp, tst, adds), touches a vector register, makes a system
    // call or waits. The loop that waits for room in a full ring has a `yield`.
    let allowed = [
        "add", "and", "b", "bl", "cbnz", "cbz", "eor", "ldar", "ldaxr", "ldp", "ldr", "ldxr",
        "lsl", "lsr", "mov", "movk", "movn", "movz", "mrs", "orr", "ret", "stlr", "stlxr", "stp",
        "str", "stxr", "sub", "tbnz", "tbz", "ubfm", "udf",
    ];
    for spec in specs() {
        let trampolines = Trampolines::assemble(&spec).unwrap();
        assert!(trampolines.code.len().is_multiple_of(4));
        let mut yields = 0;
        for (i, text) in disassemble(&trampolines.code).iter().enumerate() {
            let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
            let word = &trampolines.code[4 * i..4 * i + 4];
            // The padding, which this disassembler cannot decode.
            if word == [0; 4] {
                continue;
            }
            yields += u32::from(name == "yield");
            assert!(
                name == "yield" || allowed.contains(&name),
                "{:#x}: {text}",
                4 * i
            );
            for register in operands.split(|c: char| !c.is_ascii_alphanumeric()) {
                // Scratch registers are those that the frame has room for.
                let number = register
                    .strip_prefix(['x', 'w'])
                    .and_then(|n| n.parse::<u32>().ok());
                let known = number.is_none_or(|number| number <= 17 || number == 30);
                assert!(known, "{:#x}: {text}", 4 * i);
                let vector = ["v", "q", "d", "s", "h"].iter().any(|class| {
                    register
                        .strip_prefix(class)
                        .is_some_and(|n| n.parse::<u32>().is_ok())
                });
                assert!(!vector, "{:#x}: {text}", 4 * i);
            }
        }
        assert_eq!(yields, 1);
    }
}
