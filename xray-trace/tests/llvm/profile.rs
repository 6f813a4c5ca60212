//! Profiling-mode files of both layouts.

use proptest::prelude::*;
use xray_trace::llvm::profile::{
    BlockHeader, FileHeader, Reader, VERSION, write_block, write_file_header,
};
use xray_trace::llvm::{ByteOrder, Error, Mode};

/// Block, functions, calls, ticks.
pub(crate) type Seen = (u32, u64, Vec<i32>, u64, u64);

pub(crate) fn read(bytes: &[u8], mode: Mode) -> (Vec<Seen>, Option<Error>, usize) {
    let mut seen = Vec::new();
    let mut reader = match Reader::new(bytes, mode) {
        Ok(reader) => reader,
        Err(error) => return (seen, Some(error), 0),
    };
    loop {
        match reader.next() {
            Ok(Some(path)) => seen.push((
                path.block.number,
                path.block.thread,
                path.functions.to_vec(),
                path.calls,
                path.ticks,
            )),
            Ok(None) => return (seen, None, reader.skipped().kept().len()),
            Err(error) => return (seen, Some(error), reader.skipped().kept().len()),
        }
    }
}

pub(crate) fn block(
    number: u32,
    thread: u64,
    paths: &[(Vec<i32>, u64, u64)],
    order: ByteOrder,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let paths = paths
        .iter()
        .map(|(functions, calls, ticks)| (&functions[..], *calls, *ticks));
    write_block(BlockHeader { number, thread }, paths, order, &mut bytes).unwrap();
    bytes
}

pub(crate) fn file_header(order: ByteOrder) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = FileHeader {
        timestamp: 99,
        pid: 12,
    };
    write_file_header(&header, order, &mut bytes).unwrap();
    bytes
}

fn two_blocks(order: ByteOrder) -> Vec<u8> {
    let first = block(
        0,
        10,
        &[(vec![3, 2, 1], 5, 500), (vec![2, 1], 1, 20)],
        order,
    );
    let second = block(1, 11, &[(vec![7], 2, 9)], order);
    [first, second].concat()
}

fn expected() -> Vec<Seen> {
    vec![
        (0, 10, vec![3, 2, 1], 5, 500),
        (0, 10, vec![2, 1], 1, 20),
        (1, 11, vec![7], 2, 9),
    ]
}

#[test]
fn the_runtimes_layout_is_read() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let bytes = [file_header(order), two_blocks(order)].concat();
        let (seen, error, _) = read(&bytes, Mode::Strict);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(seen, expected());
        let reader = Reader::new(&bytes[..], Mode::Strict).unwrap();
        assert_eq!(
            reader.header(),
            Some(&FileHeader {
                timestamp: 99,
                pid: 12
            })
        );
    }
    let bytes = file_header(ByteOrder::Little);
    assert_eq!(bytes[..8], *b"forpyarx");
}

#[test]
fn the_loaders_layout_is_read() {
    let (seen, error, _) = read(&two_blocks(ByteOrder::Little), Mode::Strict);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, expected());
    // LLVM's loader reads one path of each block, and ignores the length.
    let one = |number, thread, functions: Vec<i32>| {
        block(number, thread, &[(functions, 1, 2)], ByteOrder::Little)
    };
    let mut second = one(1, 11, vec![9, 8]);
    second[..4].copy_from_slice(&[0; 4]);
    let bytes = [one(0, 10, vec![3, 2, 1]), second, one(2, 12, vec![4])].concat();
    let (seen, error, _) = read(&bytes, Mode::Strict);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(
        seen,
        [
            (0, 10, vec![3, 2, 1], 1, 2),
            (1, 11, vec![9, 8], 1, 2),
            (2, 12, vec![4], 1, 2)
        ]
    );
}

#[test]
fn a_profile_cut_at_any_byte_gives_what_stands_in_front() {
    let whole = [
        file_header(ByteOrder::Little),
        two_blocks(ByteOrder::Little),
    ]
    .concat();
    for len in 0..whole.len() {
        let (seen, error, _) = read(&whole[..len], Mode::Strict);
        assert_eq!(seen, expected()[..seen.len()]);
        let between = [32, 32 + 16 + 32 + 28].contains(&len);
        // A block may end at the end of a path. The rest of its length is missing then.
        assert_eq!(error.is_none(), between, "{len}: {seen:?} {error:?}");
        if len > 32 {
            assert_eq!(read(&whole[..len], Mode::Salvage).0, seen);
        }
    }
}

#[test]
fn damage_is_named_and_the_next_block_is_read() {
    let mut bytes = [
        file_header(ByteOrder::Little),
        two_blocks(ByteOrder::Little),
    ]
    .concat();
    // The 0 behind the second path is overwritten: its calls are read as functions, and it extends
    // beyond its block.
    bytes[32 + 16 + 32 + 8] = 1;
    let (seen, error, _) = read(&bytes, Mode::Strict);
    assert_eq!(seen, expected()[..1]);
    assert_eq!(
        error.unwrap().to_string(),
        "block at offset 32: a path in it ends at 116, but the block ends at 108"
    );
    let (seen, error, skipped) = read(&bytes, Mode::Salvage);
    assert!(error.is_none());
    assert_eq!(
        (seen, skipped),
        (vec![expected()[0].clone(), expected()[2].clone()], 1)
    );

    bytes[8] = 0x25;
    let version = VERSION + 1;
    let message = format!(
        "version {version} of the profile is not supported; the newest supported version is \
         {VERSION}"
    );
    assert_eq!(read(&bytes, Mode::Strict).1.unwrap().to_string(), message);
    assert!(matches!(read(b"", Mode::Strict).1, Some(Error::Empty)));
    assert!(matches!(
        read(b"---\n", Mode::Strict).1,
        Some(Error::Other { .. })
    ));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fail_or_loop(bytes in proptest::collection::vec(0_u8..4, 0..300)) {
        let bytes = [file_header(ByteOrder::Little), bytes].concat();
        let (seen, error, _) = read(&bytes, Mode::Salvage);
        prop_assert!(error.is_none());
        prop_assert!(seen.len() <= bytes.len() / 20);
    }
}
