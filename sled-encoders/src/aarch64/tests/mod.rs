//! Rows of words, checked by an independent disassembler. Nothing is executed here.

use proptest::prelude::*;
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction};

use super::*;
use crate::EncodeError;

/// The address of the sled of each row, and the addresses that it calls: near, and far away.
const SLED: u64 = 0x40_1000;
const NEAR: u64 = 0x40_2000;
const FAR: u64 = 0x7f12_3456_7890;

/// A sled as the compiler writes it.
const COMPILED: [u32; 8] = [
    0x1400_0008,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn sled(words: [u32; 8]) -> [u8; SLED_BYTES] {
    bytes(&words).try_into().expect("the length of a sled")
}

/// Every word, as an instruction or not.
fn decode(bytes: &[u8]) -> Vec<Option<Instruction>> {
    let decoder = InstDecoder::default();
    let words = bytes.chunks_exact(4);
    words
        .map(|word| decoder.decode(&mut U8Reader::new(word)).ok())
        .collect()
}

fn disassemble(bytes: &[u8]) -> Vec<String> {
    let instructions = decode(bytes).into_iter();
    instructions
        .map(|i| i.map_or_else(|| "?".to_owned(), |i| i.to_string()))
        .collect()
}

/// A sled as the compiler writes it, staged, and on.
fn states(trampoline: u64) -> [(State, [u8; SLED_BYTES]); 3] {
    let compiled = sled(COMPILED);
    let staging = stage(SLED, trampoline).unwrap();
    let mut staged = compiled;
    let from = usize::from(staging.offset);
    staged[from..from + staging.bytes().len()].copy_from_slice(staging.bytes());
    let switch = switch();
    let at = usize::from(switch.offset)..usize::from(switch.offset) + 4;
    assert_eq!(staged[at.clone()], switch.off, "what the compiler wrote");
    let mut on = staged;
    on[at].copy_from_slice(&switch.on);
    [
        (State::Compiled, compiled),
        (State::Staged { target: trampoline }, staged),
        (State::On { target: trampoline }, on),
    ]
}

#[test]
fn sleds_in_every_state() {
    let near = [
        "str x30, [sp, #-0x10]!",
        "nop",
        "bl $+0xff4",
        "ldr x30, [sp], #0x10",
        "nop",
        "nop",
        "nop",
    ];
    let far = [
        "stp x16, x30, [sp, #-0x10]!",
        "ldr x16, $+0xc",
        "blr x16",
        "b $+0xc",
        "?",
        "?",
        "ldp x16, x30, [sp], #0x10",
    ];
    for (trampoline, body) in [(NEAR, near), (FAR, far)] {
        let rows = [("b $+0x20", ["nop"; 7]), ("b $+0x20", body), ("nop", body)];
        for ((state, made), (first, body)) in states(trampoline).into_iter().zip(rows) {
            let text = disassemble(&made);
            assert_eq!(text[0], first, "{state:x?}");
            for (text, expected) in text[1..].iter().zip(body) {
                assert!(
                    expected == "?" || text == expected,
                    "{state:x?}: {text}, not {expected}"
                );
            }
            assert_eq!(classify(SLED, &made), state);
        }
    }
    let [.., (_, on)] = states(FAR);
    assert_eq!(on[20..28], FAR.to_le_bytes());
}

#[test]
fn leftovers_of_others_are_distinguished() {
    let nop = 0xd503_201f;
    let runtime = |first, second| {
        [
            first,
            second,
            0x5800_0070,
            0xd63f_0200,
            1,
            0x2000,
            0,
            0xa8c1_7be0,
        ]
    };
    let with = |at: usize, word| {
        let mut words = COMPILED;
        words[at] = word;
        words
    };
    let rows = [
        // LLVM's runtime: patched, and unpatched again; from LLVM 17 on, and before.
        (runtime(0xa9bf_7be0, 0x1800_0071), State::Runtime),
        (runtime(0x1400_0008, 0x1800_0071), State::Runtime),
        (runtime(0xa9bf_7be0, 0x1800_0060), State::Runtime),
        (runtime(0x1400_0008, 0x1800_0060), State::Runtime),
        // brk #0 (gdb), brk #0xf000
        (with(0, 0xd420_0000), State::Breakpoint),
        (with(0, 0xd43e_0000), State::Breakpoint),
        // Bytes that call nothing.
        (with(0, nop), State::Foreign),
        (with(0, 0x1400_0006), State::Foreign),
        (with(7, 0xd503_205f), State::Foreign),
        (with(1, 0xf81f_0ffe), State::Foreign),
        ([0; 8], State::Foreign),
    ];
    for (words, state) in rows {
        assert_eq!(classify(SLED, &sled(words)), state, "{words:08x?}");
    }
}

#[test]
fn what_follows_a_sled() {
    let rows = [
        (0xd65f_03c0, After::Return, "ret"),
        (0xd65f_0200, After::Return, "ret x16"),
        (0xd65f_0bff, After::Return, "retaa"),
        (0xd65f_0fff, After::Return, "retab"),
        (0x1400_0040, After::TailJump, "b $+0x100"),
        (0x17ff_ffff, After::TailJump, "b $-0x4"),
        (0xd61f_0020, After::TailJump, "br x1"),
        (0xd61f_0200, After::TailJump, "br x16"),
        (0xd61f_083f, After::TailJump, "braaz x1"),
        (0xd61f_0c3f, After::TailJump, "brabz x1"),
        (0xd71f_0822, After::TailJump, "braa x1, x2"),
        (0xd71f_0c22, After::TailJump, "brab x1, x2"),
        (0x5400_0040, After::Other, "b.eq $+0x8"),
        (0xb400_0040, After::Other, "cbz x0, $+0x8"),
        (0x9400_0040, After::Other, "bl $+0x100"),
        (0xd63f_0020, After::Other, "blr x1"),
        (0xd503_201f, After::Other, "nop"),
        (0xd503_23bf, After::Other, "autiasp"),
    ];
    for (word, expected, text) in rows {
        assert_eq!(disassemble(&bytes(&[word])), [text], "{word:08x}");
        assert_eq!(after(&bytes(&[word])), expected, "{text}");
    }
    assert_eq!(after(&[]), After::Other);
    assert_eq!(after(&[0xc0, 0x03, 0x5f]), After::Other);
}

#[test]
fn beyond_128_megabytes_the_address_stands_in_the_sled() {
    let next = SLED + 12;
    for (target, near) in [
        (next + 0x7ff_fffc, true),
        (next + 0x800_0000, false),
        (next.wrapping_sub(0x800_0000), true),
        (next.wrapping_sub(0x800_0004), false),
    ] {
        let [_, (state, staged), _] = states(target);
        assert_eq!(classify(SLED, &staged), state, "{target:#x}");
        assert_eq!(
            disassemble(&staged)[3].starts_with("bl $"),
            near,
            "{target:#x}"
        );
    }
}

#[test]
fn instructions_stand_at_multiples_of_four() {
    for address in [SLED + 1, SLED + 2, u64::MAX] {
        let refused = Err(EncodeError::Unaligned { address });
        assert_eq!(stage(address, NEAR), refused);
        assert_eq!(stage(SLED, address), refused);
    }
    assert_eq!(call_site(SLED) % 2, 1, "the name of a site is odd");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_something(
        words: [u32; 8],
        staged in 0..3usize,
        address: u64,
        follows in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        // Half of them with the frame of a staged sled around.
        let mut words = words;
        match staged {
            0 => {}
            1 => (words[0], words[1], words[2], words[4]) = (0x1400_0008, 0xf81f_0ffe, 0xd503_201f, 0xf841_07fe),
            _ => (words[0], words[1], words[2], words[7]) = (0xd503_201f, 0xa9bf_7bf0, 0x5800_0070, 0xa8c1_7bf0),
        }
        classify(address, &sled(words));
        after(&follows);
    }

    #[test]
    fn a_staged_sled_is_found_again(address: u64, target: u64, distance in -(1i64 << 28)..1 << 28, near: bool) {
        let address = address & !3;
        let target = if near { address.wrapping_add_signed(distance) } else { target } & !3;
        let staging = stage(address, target).unwrap();
        let mut words = sled(COMPILED);
        words[4..].copy_from_slice(staging.bytes());
        prop_assert_eq!(classify(address, &words), State::Staged { target });
        words[..4].copy_from_slice(&switch().on);
        prop_assert_eq!(classify(address, &words), State::On { target });
    }
}

mod trampolines;
