//! Memory for what is read in streams: weights, adapters, keys and values, in huge pages where the system has them.
//!
//! Pages of 4 KiB cost a look-up in memory for each of them and end the machine's own prefetching. Weights are many matrices of
//! a megabyte or two, so they share mappings that are large enough for huge pages.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use memmap2::MmapMut;

use super::simd::Number;

/// Every array begins at a multiple of this: a cache line, and the alignment of every type in here.
const LINE: usize = 64;

/// Where arrays are cut from.
pub(super) struct Arena {
    /// The mapping that has room left, if any: the mapping, where it begins, and how much of it is used.
    open: Option<(Arc<MmapMut>, *mut u8, usize)>,
    /// Bytes of a mapping, unless an array asks for more.
    mapping: usize,
}

// SAFETY: the pointer is into the mapping beside it, and what is used of it belongs to arrays.
unsafe impl Send for Arena {}

/// An array.
pub(super) struct Array<T> {
    /// Keeps it mapped.
    _mapping: Arc<MmapMut>,
    at: *mut T,
    len: usize,
}

// SAFETY: it owns its part of the mapping, as a `Vec` would.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: the same.
unsafe impl<T: Sync> Sync for Array<T> {}

impl Arena {
    /// An arena that maps so many bytes at a time.
    pub(super) fn new(mapping: usize) -> Self {
        Self { open: None, mapping }
    }

    /// A copy.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn copy<T: Copy>(&mut self, from: &[T]) -> io::Result<Array<T>> {
        let array = self.cut(from.len())?;
        // SAFETY: the array has room for as many, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), array.at, from.len()) };
        Ok(array)
    }

    /// Zeros.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn zeros<E: Number, const N: usize>(&mut self, len: usize) -> io::Result<Array<[E; N]>> {
        // New mappings are zero, which is what all bits zero are in every `Number`.
        self.cut(len)
    }

    /// Room that nobody has had.
    fn cut<T>(&mut self, len: usize) -> io::Result<Array<T>> {
        const { assert!(align_of::<T>() <= LINE) };
        let bytes = (len * size_of::<T>()).next_multiple_of(LINE);
        let has_room = |used: usize, mapping: &MmapMut| mapping.len() - used >= bytes;
        let (mapping, base, used) = match self.open.take() {
            Some((mapping, base, used)) if has_room(used, &mapping) => (mapping, base, used),
            _ => {
                let mut mapping = MmapMut::map_anon(bytes.max(self.mapping).max(LINE))?;
                // What cannot be advised is read from small pages.
                #[cfg(target_os = "linux")]
                let _ = mapping.advise(memmap2::Advice::HugePage);
                let base = mapping.as_mut_ptr();
                (Arc::new(mapping), base, 0)
            }
        };
        // SAFETY: within the mapping.
        let at = unsafe { base.add(used) }.cast();
        self.open = Some((mapping.clone(), base, used + bytes));
        Ok(Array {
            _mapping: mapping,
            at,
            len,
        })
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: this part of the mapping is the array's, and filled.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_apart_aligned_and_outlive_the_arena() {
        let mut arena = Arena::new(1 << 12);
        let bytes: Vec<_> = (0..50u8)
            .map(|i| arena.copy(&vec![i; 3 * usize::from(i)]).unwrap())
            .collect();
        let large = arena.copy(&[7u64; 1000]).unwrap();
        let mut zeros = arena.zeros::<f32, 16>(3).unwrap();
        drop(arena);
        zeros[1][0] = 1.0;
        assert_eq!(
            *zeros,
            [
                [0.0; 16],
                [
                    1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
                ],
                [0.0; 16]
            ]
        );
        assert!(large.iter().all(|x| *x == 7) && large.len() == 1000);
        for (i, array) in bytes.iter().enumerate() {
            assert_eq!(**array, vec![i as u8; 3 * i]);
            assert!(array.as_ptr().addr().is_multiple_of(LINE));
        }
    }
}
