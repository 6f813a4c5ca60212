//! profileCollectorServiceTest of compiler-rt: the content of a profile's file, byte by byte.
//! Collecting it is the runtime's part, and not tested here.

use xray_trace::llvm::profile::{FileHeader, Reader};
use xray_trace::llvm::{ByteOrder, Mode};

use crate::profile::{Seen, block, file_header, read};

/// f1 calls f2, which takes one tick of the three: two paths.
fn thread(number: u32, tid: u64) -> Vec<u8> {
    let paths = [(vec![1], 1, 2), (vec![2, 1], 1, 1)];
    block(number, tid, &paths, ByteOrder::Little)
}

fn seen(number: u32, tid: u64) -> [Seen; 2] {
    [
        (number, tid, vec![1], 1, 2),
        (number, tid, vec![2, 1], 1, 1),
    ]
}

#[test]
fn post_serialize_collect() {
    let bytes = [file_header(ByteOrder::Little), thread(0, 1)].concat();
    let (header, block) = bytes.split_at(32);
    assert_eq!(header[..8], 0x7872_6179_7072_6f66_u64.to_le_bytes());
    assert_eq!(header[8..16], 0x2018_0424_u64.to_le_bytes());
    // The size, the number and the thread, then the paths from the last called function, each with
    // a 0 behind it.
    let expected: [&[u8]; 8] = [
        &[68, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(block, expected.concat());
    let (paths, error, _) = read(&bytes, Mode::Strict);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(paths, seen(0, 1));
    let reader = Reader::new(&bytes[..], Mode::Strict).unwrap();
    let expected = FileHeader {
        timestamp: 99,
        pid: 12,
    };
    assert_eq!(reader.header(), Some(&expected));
}

/// A block for each thread.
#[test]
fn post_serialize_collect_multiple_thread() {
    let header = file_header(ByteOrder::Little);
    let bytes = [header, thread(0, 4711), thread(1, 4712)].concat();
    let (paths, error, _) = read(&bytes, Mode::Strict);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(paths, [seen(0, 4711), seen(1, 4712)].concat());
}
