//! Rows of bytes, checked by an independent disassembler. Nothing is executed here.

use proptest::prelude::*;
use shm_ring::Geometry;
use yaxpeax_arch::{Decoder, LengthedInstruction, U8Reader};
use yaxpeax_x86::amd64::{InstDecoder, Instruction};

use super::*;
use crate::{Capture, EncodeError, SledKind};

/// The address of the sled of each row, and the address that it calls.
const SLED: u64 = 0x40_1000;
const TRAMPOLINE: u64 = 0x40_2000;

const ENTRY: &str = "eb09660f1f840000020000";
const EXIT: &str = "c32e660f1f840000020000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    let pair = |pair: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).expect("hexadecimal digits")
    };
    digits.chunks(2).map(pair).collect()
}

fn sled(hex: &str) -> [u8; SLED_BYTES] {
    bytes(hex).try_into().expect("the length of a sled")
}

/// The instructions from the start on, up to bytes that are none.
fn decode(bytes: &[u8]) -> Vec<(u64, Instruction)> {
    let decoder = InstDecoder::default();
    let mut reader = U8Reader::new(bytes);
    let (mut at, mut instructions) = (0, Vec::new());
    while let Ok(instruction) = decoder.decode(&mut reader) {
        instructions.push((at, instruction));
        at += instruction.len().to_const();
    }
    instructions
}

fn disassemble(bytes: &[u8]) -> String {
    let lines: Vec<String> = decode(bytes).iter().map(|(_, i)| i.to_string()).collect();
    lines.join("; ")
}

/// A sled of `kind` as the compiler writes it, staged, and on.
fn states(kind: SledKind) -> [(State, [u8; SLED_BYTES]); 3] {
    let compiled = sled(if kind == SledKind::Exit { EXIT } else { ENTRY });
    let staging = stage(kind, SLED, TRAMPOLINE).unwrap();
    let mut staged = compiled;
    let from = usize::from(staging.offset);
    staged[from..from + staging.bytes().len()].copy_from_slice(staging.bytes());
    let switch = switch(kind);
    assert_eq!(
        staged[usize::from(switch.offset)],
        switch.off,
        "off is what the compiler wrote"
    );
    let mut on = staged;
    on[usize::from(switch.offset)] = switch.on;
    [
        (State::Compiled, compiled),
        (State::Staged { target: TRAMPOLINE }, staged),
        (State::On { target: TRAMPOLINE }, on),
    ]
}

#[test]
fn sleds_in_every_state() {
    let entry = [
        (ENTRY, "jmp $+0x9; nop word [rax + rax * 1 + 0x200]"),
        (
            "eb09 e8f90f0000 0f1f4000",
            "jmp $+0x9; call $+0xff9; nop dword [rax]",
        ),
        (
            "a809 e8f90f0000 0f1f4000",
            "test al, 0x9; call $+0xff9; nop dword [rax]",
        ),
    ];
    let tail = [
        entry[0],
        entry[1],
        (
            "eb00 e8f90f0000 0f1f4000",
            "jmp $+0x0; call $+0xff9; nop dword [rax]",
        ),
    ];
    // The rest of the compiler's nop stands behind the staged return. No thread gets there.
    let exit = [
        (EXIT, "ret; nop word [rax + rax * 1 + 0x200]"),
        (
            "c3 fb0f0000 c3 0000020000",
            "ret; sti; sldt word [rax]; ret; add byte [rax], al; add al, byte [rax]",
        ),
        (
            "e8 fb0f0000 c3 0000020000",
            "call $+0xffb; ret; add byte [rax], al; add al, byte [rax]",
        ),
    ];
    for (kind, rows) in [
        (SledKind::Entry, entry),
        (SledKind::EntryArgument, entry),
        (SledKind::TailExit, tail),
        (SledKind::Exit, exit),
    ] {
        for ((state, made), (hex, text)) in states(kind).into_iter().zip(rows) {
            assert_eq!(made, sled(hex), "{kind:?} {state:?}: {made:02x?}");
            assert_eq!(disassemble(&made), text, "{kind:?} {state:?}");
            assert_eq!(classify(kind, SLED, &made), state, "{kind:?}");
        }
    }
}

#[test]
fn leftovers_of_others_are_distinguished() {
    let rows = [
        // LLVM's runtime: patched, and unpatched again.
        (SledKind::Entry, "41ba01000000 e800000000", State::Runtime),
        (SledKind::Entry, "eb0901000000 e800000000", State::Runtime),
        (SledKind::Exit, "41ba01000000 e900000000", State::Runtime),
        (SledKind::Exit, "c3ba01000000 e900000000", State::Runtime),
        (
            SledKind::TailExit,
            "eb0901000000 e800000000",
            State::Runtime,
        ),
        (SledKind::Entry, "cc09660f1f840000020000", State::Breakpoint),
        (SledKind::Exit, "cc2e660f1f840000020000", State::Breakpoint),
        (SledKind::Entry, "5548 89e5 4883ec10 897dfc", State::Foreign),
        // Each kind's bytes at a sled of another.
        (SledKind::Exit, ENTRY, State::Foreign),
        (SledKind::Entry, EXIT, State::Foreign),
        (
            SledKind::TailExit,
            "a809 e8f90f0000 0f1f4000",
            State::Foreign,
        ),
        (SledKind::Entry, "eb00 e8f90f0000 0f1f4000", State::Foreign),
        // One byte off.
        (SledKind::Entry, "eb09660f1f840000020001", State::Foreign),
        (SledKind::Entry, "eb09 e8f90f0000 0f1f4001", State::Foreign),
    ];
    for (kind, hex, state) in rows {
        assert_eq!(classify(kind, SLED, &sled(hex)), state, "{kind:?} {hex}");
    }
}

#[test]
fn the_jump_after_a_tail_sled() {
    let conditional = |condition| TailJump::Conditional { condition };
    let rows = [
        ("e900010000", TailJump::Plain, "jmp $+0x100"),
        ("eb10", TailJump::Plain, "jmp $+0x10"),
        ("ffe0", TailJump::Plain, "jmp rax"),
        ("41ffe3", TailJump::Plain, "jmp r11"),
        ("3effe0", TailJump::Plain, "jmp rax"),
        ("ff2510000000", TailJump::Plain, "jmp qword [rip + 0x10]"),
        ("ff6010", TailJump::Plain, "jmp qword [rax + 0x10]"),
        (
            "64ff2510000000",
            TailJump::Plain,
            "jmp qword fs:[rip + 0x10]",
        ),
        ("64ff242510000000", TailJump::Plain, "jmp qword fs:[0x10]"),
        ("ff2424", TailJump::Plain, "jmp qword [rsp]"),
        ("ff642408", TailJump::Plain, "jmp qword [rsp + 0x8]"),
        ("ffa42480000000", TailJump::Plain, "jmp qword [rsp + 0x80]"),
        ("ff6424f8", TailJump::BelowStack, "jmp qword [rsp - 0x8]"),
        ("3eff6424f8", TailJump::BelowStack, "jmp qword [rsp - 0x8]"),
        (
            "ffa42480ffffff",
            TailJump::BelowStack,
            "jmp qword [rsp - 0x80]",
        ),
        // With an index, any address is possible.
        (
            "ff64c408",
            TailJump::BelowStack,
            "jmp qword [rsp + rax * 8 + 0x8]",
        ),
        ("7410", conditional(4), "jz $+0x10"),
        ("0f8510000000", conditional(5), "jnz $+0x10"),
        ("2e7410", conditional(4), "jz $+0x10"),
        ("e310", TailJump::Other, "jrcxz $+0x10"),
        ("67e310", TailJump::Other, "jecxz $+0x10"),
        ("e210", TailJump::Other, "loop $+0x10"),
        ("c3", TailJump::Other, "ret"),
        ("e800010000", TailJump::Other, "call $+0x100"),
        ("ffd0", TailJump::Other, "call rax"),
        ("90", TailJump::Other, "nop"),
        ("", TailJump::Other, ""),
        ("e900", TailJump::Other, ""),
    ];
    for (hex, jump, text) in rows {
        assert_eq!(disassemble(&bytes(hex)), text, "{hex}");
        assert_eq!(tail_jump(&bytes(hex)), jump, "{hex}: {text}");
    }
    for condition in 0..16u8 {
        let expected = conditional(condition);
        assert_eq!(tail_jump(&[0x70 | condition, 0x10]), expected);
        assert_eq!(tail_jump(&[0x0f, 0x80 | condition, 1, 2, 3, 4]), expected);
    }
}

#[test]
fn stubs_step_over_the_red_zone() {
    let stub = |jump| Stub::for_jump(SLED, jump, 0x40_3000, TRAMPOLINE).unwrap();
    let conditional = stub(TailJump::Conditional { condition: 4 });
    assert_eq!(
        disassemble(&conditional.code),
        "jnz $+0x17; lea rsp, qword [rsp - 0x80]; push 0x401007; call $-0x1011; lea rsp, qword [rsp + 0x88]; jmp $-0x2013"
    );
    let below = stub(TailJump::BelowStack);
    assert_eq!(
        disassemble(&below.code),
        "lea rsp, qword [rsp - 0x80]; push 0x401007; call $-0x100f; lea rsp, qword [rsp + 0x88]; jmp $-0x2011"
    );
    for stub in [conditional, below] {
        assert!(stub.code.len() <= STUB_BYTES);
        let mut staged = sled(ENTRY);
        staged[2..].copy_from_slice(stub.staging.bytes());
        assert_eq!(
            disassemble(&staged),
            "jmp $+0x9; jmp $+0x1ff9; nop dword [rax]"
        );
        let target = 0x40_3000;
        assert_eq!(
            classify(SledKind::TailExit, SLED, &staged),
            State::Staged { target }
        );
        staged[1] = 0x00;
        assert_eq!(
            classify(SledKind::TailExit, SLED, &staged),
            State::On { target }
        );
    }
}

#[test]
fn two_gigabytes_are_as_far_as_it_goes() {
    for kind in SledKind::ALL {
        let next = call_site(kind, SLED);
        assert_eq!(next % 2, 1, "the name of a site is odd");
        for (target, reached) in [
            (next + 0x7fff_ffff, true),
            (next + 0x8000_0000, false),
            (next.wrapping_sub(0x8000_0000), true),
            (next.wrapping_sub(0x8000_0001), false),
        ] {
            let staging = stage(kind, SLED, target);
            let refused = Err(EncodeError::OutOfReach {
                from: next,
                to: target,
            });
            assert!(
                if reached {
                    staging.is_ok()
                } else {
                    staging == refused
                },
                "{target:#x}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_something(
        bytes: [u8; MAX_SLED_BYTES],
        short in 0..=MAX_SLED_BYTES,
        address: u64,
        jump in proptest::collection::vec(any::<u8>(), 0..16),
    ) {
        for kind in SledKind::ALL {
            classify(kind, address, &bytes[..bytes.len() - short]);
        }
        tail_jump(&jump);
    }

    #[test]
    fn a_staged_sled_is_found_again(address: u64, distance: i32, number in 0..4usize) {
        let kind = SledKind::OF_FUNCTIONS[number];
        let target = call_site(kind, address).wrapping_add_signed(i64::from(distance));
        let staging = stage(kind, address, target).unwrap();
        let mut bytes = sled(if kind == SledKind::Exit { EXIT } else { ENTRY });
        let from = usize::from(staging.offset);
        bytes[from..from + staging.bytes().len()].copy_from_slice(staging.bytes());
        let switch = switch(kind);
        prop_assert_eq!(classify(kind, address, &bytes), State::Staged { target });
        bytes[usize::from(switch.offset)] = switch.on;
        prop_assert_eq!(classify(kind, address, &bytes), State::On { target });
    }
}

mod events;
mod trampolines;
