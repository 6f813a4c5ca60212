//! The detection of a file's kind from its first bytes.

use xray_trace::container::Writer;
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::profile::{self, BlockHeader, FileHeader};
use xray_trace::llvm::{ByteOrder, Format, Header, PREFIX_LEN};

#[test]
fn every_format_is_reported_by_its_first_bytes() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for (log, expected, versions) in [
            (LogType::Basic, Format::Basic(order), 1..=9),
            (LogType::Fdr, Format::Fdr(order), 1..=9),
        ] {
            for version in versions {
                let mut header = Header::new(log, version, 1_000_000_000);
                header.order = order;
                let mut bytes = Vec::new();
                header.write(&mut bytes).unwrap();
                assert_eq!(Format::detect(&bytes), expected);
                bytes.truncate(4);
                assert_eq!(Format::detect(&bytes), expected);
            }
        }
        let mut bytes = Vec::new();
        let file = FileHeader {
            timestamp: 1,
            pid: 2,
        };
        profile::write_file_header(&file, order, &mut bytes).unwrap();
        assert_eq!(Format::detect(&bytes), Format::Profile(order));
        let mut bytes = Vec::new();
        let block = BlockHeader {
            number: 0,
            thread: 4711,
        };
        let path: &[i32] = &[3, 2, 1];
        profile::write_block(block, [(path, 1, 2)].into_iter(), order, &mut bytes).unwrap();
        assert_eq!(Format::detect(&bytes), Format::ProfileBlocks(order));
    }
    let xtrace = Writer::new(Vec::new()).unwrap().into_inner();
    assert_eq!(Format::detect(&xtrace), Format::Xtrace);
    for text in [
        "---\nheader:\n",
        "header:\n",
        "# RUN: x\n---\n",
        "\u{feff}---\n",
        "- { id: 1",
    ] {
        assert_eq!(Format::detect(text.as_bytes()), Format::Yaml, "{text}");
    }
    for (text, expected) in [
        ("{\"time_ns\":1,", Format::JsonLines),
        ("\u{feff} {\n \"arguments\" : [", Format::JsonLines),
        ("time_ns,pid,process", Format::Csv),
        ("\u{feff}\"time_ns\",\"pid\"", Format::Csv),
        ("time_ns: 1", Format::Yaml),
        ("{\"displayTimeUnit\":\"ns\",", Format::Chrome),
        (
            "{\"a key that is longer than the part that is looked at",
            Format::Chrome,
        ),
        ("[\n {\"ph\"", Format::Chrome),
        ("[]", Format::Chrome),
        ("[a, b]", Format::Yaml),
        ("{\"header\": {", Format::Yaml),
        ("{ header: {", Format::Yaml),
    ] {
        assert_eq!(Format::detect(text.as_bytes()), expected, "{text}");
    }
    let cut = "äöü".repeat(PREFIX_LEN);
    assert_eq!(
        Format::detect(&cut.as_bytes()[..PREFIX_LEN - 1]),
        Format::Yaml
    );
    assert_eq!(Format::detect(b""), Format::Empty);
    for bytes in [
        &b"\x7fELF\x02\x01\x01\0\0\0"[..],
        b"\xff\xfe",
        b"\0",
        b"PK\x03\x04",
    ] {
        assert_eq!(Format::detect(bytes), Format::Unknown, "{bytes:?}");
    }
}
