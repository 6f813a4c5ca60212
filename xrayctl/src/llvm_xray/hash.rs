//! The hashes of LLVM 19: `densemap::detail::mix` of `llvm/ADT/DenseMapInfo.h`, and `hash_value` of
//! a string, which `llvm/ADT/Hashing.h` derives from CityHash.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;
const K3: u64 = 0xc949_d7c7_509e_6557;
const MULTIPLIER: u64 = 0x9ddf_ea08_eb38_2d69;
/// The seed of a release build.
const SEED: u64 = 0xff51_afd7_ed55_8ccd;

/// The bytes that the state of a long string takes at once.
const CHUNK: usize = 64;

/// The state of a long string's hash.
struct State([u64; 7]);

/// The hash of a number.
pub(super) fn mix(number: u64) -> u64 {
    let product = number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    product ^ (product >> 31)
}

/// The hash of a string.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    match bytes.len() {
        0 => K2 ^ SEED,
        1..4 => up_to_3(bytes),
        4..9 => up_to_8(bytes),
        9..17 => up_to_16(bytes),
        17..33 => up_to_32(bytes),
        33..=CHUNK => up_to_64(bytes),
        len => {
            let mut state = State::new(bytes);
            for chunk in bytes.chunks_exact(CHUNK).skip(1) {
                state.mix(chunk);
            }
            if len % CHUNK != 0 {
                state.mix(&bytes[len - CHUNK..]);
            }
            state.finish(len)
        }
    }
}

fn up_to_3(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let [a, b, c] = [0, len / 2, len - 1].map(|at| u64::from(bytes[at]));
    let (y, z) = (a + (b << 8), len as u64 + (c << 2));
    shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K3) ^ SEED).wrapping_mul(K2)
}

fn up_to_8(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let (first, last) = (half(bytes, 0), half(bytes, len - 4));
    pair(len as u64 + (first << 3), SEED ^ last)
}

fn up_to_16(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let (first, last) = (word(bytes, 0), word(bytes, len - 8));
    let turned = last
        .wrapping_add(len as u64)
        .rotate_right(u32::try_from(len).unwrap_or_default());
    pair(SEED ^ first, turned) ^ last
}

fn up_to_32(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let a = word(bytes, 0).wrapping_mul(K1);
    let b = word(bytes, 8);
    let c = word(bytes, len - 8).wrapping_mul(K2);
    let d = word(bytes, len - 16).wrapping_mul(K0);
    let low = a
        .wrapping_sub(b)
        .rotate_right(43)
        .wrapping_add((c ^ SEED).rotate_right(30))
        .wrapping_add(d);
    let high = a
        .wrapping_add((b ^ K3).rotate_right(20))
        .wrapping_sub(c)
        .wrapping_add(len as u64)
        .wrapping_add(SEED);
    pair(low, high)
}

fn up_to_64(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let (front_sum, front) = quarter(
        word(bytes, 0).wrapping_add(
            (len as u64)
                .wrapping_add(word(bytes, len - 16))
                .wrapping_mul(K0),
        ),
        [word(bytes, 8), word(bytes, 16), word(bytes, 24)],
    );
    let (back_sum, back) = quarter(
        word(bytes, 16).wrapping_add(word(bytes, len - 32)),
        [
            word(bytes, len - 24),
            word(bytes, len - 16),
            word(bytes, len - 8),
        ],
    );
    let mixed = shift_mix(
        front_sum
            .wrapping_add(back)
            .wrapping_mul(K2)
            .wrapping_add(back_sum.wrapping_add(front).wrapping_mul(K0)),
    );
    shift_mix((SEED ^ mixed.wrapping_mul(K0)).wrapping_add(front)).wrapping_mul(K2)
}

/// Half of the hash of 33 to 64 bytes: a sum, and a mixture.
fn quarter(start: u64, [second, third, last]: [u64; 3]) -> (u64, u64) {
    let mut a = start;
    let b = a.wrapping_add(last).rotate_right(52);
    let mut c = a.rotate_right(37);
    a = a.wrapping_add(second);
    c = c.wrapping_add(a.rotate_right(7));
    a = a.wrapping_add(third);
    let mixture = b.wrapping_add(a.rotate_right(31)).wrapping_add(c);
    (a.wrapping_add(last), mixture)
}

/// The hash of two words.
fn pair(low: u64, high: u64) -> u64 {
    let a = shift_mix((low ^ high).wrapping_mul(MULTIPLIER));
    shift_mix((high ^ a).wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER)
}

fn shift_mix(word: u64) -> u64 {
    word ^ (word >> 47)
}

/// The eight bytes at this place; 0 for those behind the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(bytes.copied().unwrap_or_default())
}

/// The four bytes at this place; 0 for those behind the end.
fn half(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_le_bytes(bytes.copied().unwrap_or_default()).into()
}

// === impl State ===

impl State {
    /// The state after the first chunk.
    fn new(bytes: &[u8]) -> Self {
        let (h4, h5) = (SEED.wrapping_mul(K1), shift_mix(SEED));
        let mut state = Self([
            0,
            SEED,
            pair(SEED, K1),
            (SEED ^ K1).rotate_right(49),
            h4,
            h5,
            pair(h4, h5),
        ]);
        state.mix(bytes);
        state
    }

    /// Takes the chunk at the begin of the bytes.
    fn mix(&mut self, chunk: &[u8]) {
        let [h0, h1, h2, h3, h4, h5, h6] = &mut self.0;
        let sum = |words: &[u64]| {
            words
                .iter()
                .fold(0_u64, |sum, word| sum.wrapping_add(*word))
        };
        *h0 = sum(&[*h0, *h1, *h3, word(chunk, 8)])
            .rotate_right(37)
            .wrapping_mul(K1);
        *h1 = sum(&[*h1, *h4, word(chunk, 48)])
            .rotate_right(42)
            .wrapping_mul(K1);
        *h0 ^= *h6;
        *h1 = sum(&[*h1, *h3, word(chunk, 40)]);
        *h2 = h2.wrapping_add(*h5).rotate_right(33).wrapping_mul(K1);
        *h3 = h4.wrapping_mul(K1);
        *h4 = h0.wrapping_add(*h5);
        mix_half(chunk, h3, h4);
        *h5 = h2.wrapping_add(*h6);
        *h6 = h1.wrapping_add(word(chunk, 16));
        mix_half(&chunk[CHUNK / 2..], h5, h6);
        std::mem::swap(h2, h0);
    }

    fn finish(&self, len: usize) -> u64 {
        let [h0, h1, h2, h3, h4, h5, h6] = self.0;
        let low = pair(h3, h5)
            .wrapping_add(shift_mix(h1).wrapping_mul(K1))
            .wrapping_add(h2);
        let high = pair(h4, h6)
            .wrapping_add(shift_mix(len as u64).wrapping_mul(K1))
            .wrapping_add(h0);
        pair(low, high)
    }
}

/// Takes 32 bytes into two words of the state.
fn mix_half(bytes: &[u8], a: &mut u64, b: &mut u64) {
    *a = a.wrapping_add(word(bytes, 0));
    let last = word(bytes, 24);
    *b = b.wrapping_add(*a).wrapping_add(last).rotate_right(21);
    let before = *a;
    *a = a.wrapping_add(word(bytes, 8)).wrapping_add(word(bytes, 16));
    *b = b.wrapping_add(a.rotate_right(44)).wrapping_add(before);
    *a = a.wrapping_add(last);
}
