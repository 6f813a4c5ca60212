//! The size of the processor's extended state.

use std::arch::x86_64::__cpuid_count;

/// Size of the legacy area and the header of the XSAVE format.
const FIRST_BYTES: u32 = 576;
const LEAF: u32 = 0xd;

/// End of each component in the standard (not compacted) XSAVE format, in bytes; 0 for a component
/// that the processor does not have. Source: Intel SDM volume 1, 13.4. CPUID takes long in a
/// virtual machine, so it runs before a thread is stopped.
#[derive(Debug, Clone)]
pub(crate) struct XstateSizes([u32; 64]);

// === impl XstateSizes ===

impl XstateSizes {
    /// Reads the sizes of the processor with CPUID.
    pub(crate) fn of_this_processor() -> Self {
        let mut ends = [0; 64];
        let main = __cpuid_count(LEAF, 0);
        let enabled = u64::from(main.edx) << 32 | u64::from(main.eax);
        for (feature, end) in (0u32..).zip(&mut ends) {
            if enabled >> feature & 1 == 0 {
                continue;
            }
            *end = match feature {
                0 | 1 => FIRST_BYTES,
                more => {
                    let component = __cpuid_count(LEAF, more);
                    component.ebx.saturating_add(component.eax)
                }
            };
        }
        Self(ends)
    }

    /// Bytes of the format up to the end of the last of `features`. `None` if the processor does
    /// not have one of them.
    pub(crate) fn bytes(&self, features: u64) -> Option<usize> {
        let mut bytes = FIRST_BYTES;
        for (feature, &end) in self.0.iter().enumerate() {
            if features >> feature & 1 == 1 {
                bytes = bytes.max((end != 0).then_some(end)?);
            }
        }
        usize::try_from(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_processor() {
        let sizes = XstateSizes::of_this_processor();
        assert_eq!(sizes.bytes(3), Some(576));
        // The AVX component follows the header directly.
        if std::is_x86_feature_detected!("avx") {
            assert_eq!(sizes.bytes(7), Some(832));
        }
        assert_eq!(sizes.bytes(1 << 63), None);
    }
}
