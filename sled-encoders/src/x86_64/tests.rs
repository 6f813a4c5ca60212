//! Rows of bytes, checked by an independent disassembler.

use shm_ring::Geometry;

use super::*;
use crate::SledKind;

fn spec() -> TrampolineSpec {
    TrampolineSpec {
        origin: 0x5555_0000_0000,
        tid_offset: 0x2d0,
        table: 0x5555_0001_0000,
        rings: 0x7f00_0000_0000,
        geometry: Geometry::new(1 << 20, 1024).unwrap(),
    }
}

#[test]
fn trampolines_assemble_and_fit_a_page() {
    let trampolines = Trampolines::assemble(&spec()).unwrap();
    assert!(trampolines.code.len() < 4096, "{}", trampolines.code.len());
    for kind in SledKind::ALL {
        assert_eq!(trampolines.target(kind) % 64, 0);
    }
}
