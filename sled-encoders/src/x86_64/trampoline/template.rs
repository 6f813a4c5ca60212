//! Trampolines that can be placed at any addresses. To assemble them takes milliseconds, to place
//! them microseconds, and most processes have the same sizes.
//!
//! The code depends on its own place nowhere, since its branches are relative. The addresses of
//! table and rings are 64-bit constants in it. So it is assembled once for addresses that nothing
//! else in the code looks like, and these are replaced.

use shm_ring::Geometry;

use super::{TrampolineSpec, Trampolines};
use crate::error::EncodeError;

/// The addresses of table and rings in the template. The upper 20 bits mark them. Offsets from them
/// are below 2^44, since [`Geometry::MAX_TOTAL_BYTES`] is.
const TABLE: u64 = 0x5ac3_9000_0000_0000;
const RINGS: u64 = 0xa53c_6000_0000_0000;
const MARK_SHIFT: u32 = 44;
const _: () = assert!(Geometry::MAX_TOTAL_BYTES < 1 << (MARK_SHIFT - 1));

/// Trampolines for one geometry and one place of the thread id.
#[derive(Debug)]
pub struct Template {
    /// Assembled for the origin 0, and for the addresses above.
    trampolines: Trampolines,
    constants: Vec<Constant>,
}

/// An address in the code.
#[derive(Debug, Clone, Copy)]
struct Constant {
    at: usize,
    base: Base,
    /// The distance from the base.
    offset: u64,
}

#[derive(Debug, Clone, Copy)]
enum Base {
    Table,
    Rings,
}

// === impl Template ===

impl Template {
    /// Assembles the code.
    ///
    /// # Errors
    /// [`EncodeError::Assembler`]: a mistake in the assembly.
    pub fn assemble(geometry: Geometry, tid_offset: i32) -> Result<Self, EncodeError> {
        let spec = TrampolineSpec {
            origin: 0,
            tid_offset,
            table: TABLE,
            rings: RINGS,
            geometry,
        };
        let trampolines = Trampolines::generate(&spec)
            .map_err(|error| EncodeError::Assembler(error.to_string()))?;
        let windows = trampolines.code.windows(8).enumerate();
        let constants = windows.filter_map(|(at, bytes)| {
            let value = u64::from_le_bytes(bytes.try_into().ok()?);
            let (base, offset) = match value >> MARK_SHIFT {
                mark if mark == TABLE >> MARK_SHIFT => (Base::Table, value - TABLE),
                mark if mark == RINGS >> MARK_SHIFT => (Base::Rings, value - RINGS),
                _ => return None,
            };
            Some(Constant { at, base, offset })
        });
        let constants = constants.collect();
        Ok(Self {
            trampolines,
            constants,
        })
    }

    /// The trampolines at `origin`, for a table and rings at these addresses.
    pub fn place(&self, origin: u64, table: u64, rings: u64) -> Trampolines {
        let mut placed = self.trampolines.moved_to(origin);
        for &Constant { at, base, offset } in &self.constants {
            let base = match base {
                Base::Table => table,
                Base::Rings => rings,
            };
            if let Some(bytes) = placed.code.get_mut(at..at + 8) {
                bytes.copy_from_slice(&base.wrapping_add(offset).to_le_bytes());
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Also for addresses whose bytes look like others.
        #[test]
        fn placed_code_is_the_code_that_is_assembled_there(
            origin in (1_u64 << 20..1 << 35).prop_map(|page| page << 12 | 256),
            table in (1_u64 << 20..1 << 35).prop_map(|page| page << 12),
            rings in (1_u64 << 12..1 << 25).prop_map(|page| page << 22),
            ring_shift in 16_u32..22,
            threads in 1_u32..1 << 16,
            tid_offset in -0x1000_i32..0x1000,
        ) {
            let geometry = Geometry::new(1 << ring_shift, threads).unwrap();
            let spec = TrampolineSpec { origin, tid_offset, table, rings, geometry };
            let assembled = Trampolines::generate(&spec).unwrap();
            let template = Template::assemble(geometry, tid_offset).unwrap();
            prop_assert_eq!(template.place(origin, table, rings), assembled);
        }
    }
}
