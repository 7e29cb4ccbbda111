"""Small examples written out by hand from the PTX ISA's figures and tables."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator.semantics import (
    descriptors,
    fragments,
    matmul,
    swizzle,
    tma_box,
    tmem,
)


class TestSwizzle:
    def test_none_is_identity(self):
        assert swizzle.swizzle(np.arange(512), "none").tolist() == list(range(512))

    @pytest.mark.parametrize(
        ("mode", "chunks_of_lines"),
        [
            ("128B", {0: [0, 1, 2, 3, 4, 5, 6, 7], 1: [1, 0, 3, 2, 5, 4, 7, 6],
                      2: [2, 3, 0, 1, 6, 7, 4, 5], 7: [7, 6, 5, 4, 3, 2, 1, 0],
                      8: [0, 1, 2, 3, 4, 5, 6, 7]}),
            ("64B", {0: [0, 1, 2, 3, 4, 5, 6, 7], 1: [1, 0, 3, 2, 5, 4, 7, 6],
                     2: [2, 3, 0, 1, 6, 7, 4, 5], 4: [0, 1, 2, 3, 4, 5, 6, 7]}),
            ("32B", {0: [0, 1, 2, 3, 4, 5, 6, 7], 1: [1, 0, 3, 2, 5, 4, 7, 6],
                     2: [0, 1, 2, 3, 4, 5, 6, 7]}),
        ],
    )  # fmt: skip
    def test_chunks_within_128_byte_lines(self, mode, chunks_of_lines):
        for line, chunks in chunks_of_lines.items():
            addresses = line * 128 + np.arange(8) * 16
            got = (swizzle.swizzle(addresses, mode) - line * 128) // 16
            assert got.tolist() == chunks

    @pytest.mark.parametrize("mode", ["32B", "64B", "128B"])
    def test_is_its_own_inverse_and_keeps_bytes_of_a_chunk(self, mode):
        addresses = np.arange(4096)
        once = swizzle.swizzle(addresses, mode)
        assert (swizzle.swizzle(once, mode) == addresses).all()
        assert (once % 16 == addresses % 16).all()

    def test_unmeasured_modes_are_refused(self):
        with pytest.raises(ValueError, match="no measurement"):
            swizzle.swizzle(np.arange(8), "128B_ATOM_32B")
        with pytest.raises(ValueError, match="expected one of"):
            swizzle.swizzle(np.arange(8), "256B")


class TestBox:
    def test_unswizzled_rows_are_dense(self):
        got = tma_box.box_shared_offsets((16, 2, 2), 2, "none", 256)
        assert got.tolist() == [[256, 272], [288, 304], [320, 336], [352, 368]]

    def test_second_row_of_a_128_byte_span(self):
        got = tma_box.box_shared_offsets((64, 2), 2, "128B", 1024)
        assert got[1].tolist() == [
            1024 + 128 + 16 * c for c in (1, 0, 3, 2, 5, 4, 7, 6)
        ]

    @pytest.mark.parametrize(
        ("box", "size", "mode", "base", "message"),
        [
            ((4, 2), 2, "none", 0, "8 bytes"),
            ((64, 2), 4, "128B", 0, "256 bytes"),
            ((64, 2), 2, "128B", 64, "0x40"),
            ((512, 2), 2, "none", 0, "extents"),
            ((8,) * 6, 2, "none", 0, "rank"),
        ],
    )
    def test_refuses(self, box, size, mode, base, message):
        with pytest.raises(ValueError, match=message):
            tma_box.box_shared_offsets(box, size, mode, base)

    def test_rows_before_the_start_and_past_the_end(self):
        # 3 planes of 4 rows of 10 two-byte elements, rows padded to 32 bytes.
        offset, first, last = tma_box.box_rows(
            (10, 4, 3), (32, 128), (16, 2, 2), (1, 1, 1), (-8, 3, 2), 2
        )
        assert offset.tolist() == [-16 + 96 + 256, -16 + 128 + 256, 464, 496]
        assert first.tolist() == [8, 8, 8, 8]
        assert last.tolist() == [16, 8, 8, 8]  # 16 = row 3 of plane 2, else outside

    def test_clips_to_the_tensor(self):
        _, first, last = tma_box.box_rows((10, 4), (32,), (16, 1), (1, 1), (0, 0), 2)
        assert (first[0], last[0]) == (0, 10)

    def test_refuses_unaligned_innermost_coordinate_and_element_strides(self):
        with pytest.raises(ValueError, match="multiple of 8"):
            tma_box.box_rows((64, 4), (128,), (16, 1), (1, 1), (4, 0), 2)
        with pytest.raises(ValueError, match="element strides"):
            tma_box.box_rows((64, 4), (128,), (16, 1), (2, 1), (0, 0), 2)


def wgmma_desc(address, leading, stride, mode):
    return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


class TestSharedDescriptor:
    def test_decodes_wgmma(self):
        got = descriptors.decode_wgmma_descriptor(wgmma_desc(0x12340, 64, 1024, 1))
        assert got == descriptors.SharedDescriptor(0x12340, 64, 1024, 0, "128B", False)

    def test_decodes_tcgen05(self):
        word = 0x400 >> 4 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61
        got = descriptors.decode_tcgen05_descriptor(word)
        assert got == descriptors.SharedDescriptor(0x400, 16, 1024, 0, "128B", False)

    @pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 48, 52, 61])
    def test_wgmma_refuses_reserved(self, bit):
        with pytest.raises(ValueError, match="reserved bits"):
            descriptors.decode_wgmma_descriptor(1 << bit)

    @pytest.mark.parametrize("bit", [14, 15, 30, 31, 53, 60])
    def test_tcgen05_refuses_reserved(self, bit):
        with pytest.raises(ValueError, match="reserved bits"):
            descriptors.decode_tcgen05_descriptor(1 << 46 | 1 << bit)

    @pytest.mark.parametrize("version", [0, 2, 3, 5])
    def test_tcgen05_refuses_other_versions(self, version):
        with pytest.raises(ValueError, match="version"):
            descriptors.decode_tcgen05_descriptor(version << 46)

    @pytest.mark.parametrize("mode", [3, 5, 7])
    def test_tcgen05_refuses_unknown_swizzles(self, mode):
        with pytest.raises(ValueError, match="swizzle"):
            descriptors.decode_tcgen05_descriptor(1 << 46 | mode << 61)


class TestOperandAddresses:
    """Two-byte elements, k = 16; addresses read off the layout figures."""

    def address(self, desc, row, k, mn_major, rows=64):
        return int(descriptors.operand_addresses(desc, rows, 16, 2, mn_major)[row, k])

    def make(self, address, leading, stride, mode, **changes):
        fields = {"base_offset": 0, "leading_absolute": False, **changes}
        return descriptors.SharedDescriptor(
            address, leading, stride, swizzle=mode, **fields
        )

    def test_k_major_unswizzled(self):
        desc = self.make(0, 2048, 128, "none")
        assert self.address(desc, 0, 7, False) == 14
        assert self.address(desc, 3, 0, False) == 48
        assert self.address(desc, 3, 8, False) == 2048 + 48
        assert self.address(desc, 11, 9, False) == 128 + 48 + 2048 + 2

    def test_k_major_128b(self):
        desc = self.make(0x400 + 32, 16, 1024, "128B")  # second k step of an atom
        assert self.address(desc, 0, 0, False) == 0x400 + 32
        # Row 1 XORs chunk 2 with 1; row 11 is row 3 of the second group: chunk 3 ^ 3.
        assert self.address(desc, 1, 0, False) == 0x400 + 128 + 48
        assert self.address(desc, 11, 8, False) == 0x400 + 1024 + 3 * 128 + 0

    def test_mn_major_unswizzled(self):
        desc = self.make(0, 4096, 256, "none")
        assert self.address(desc, 5, 0, True) == 10
        assert self.address(desc, 8, 0, True) == 256
        assert self.address(desc, 0, 3, True) == 48
        assert self.address(desc, 9, 11, True) == 256 + 2 + 4096 + 48

    def test_mn_major_128b(self):
        desc = self.make(0, 8192, 1024, "128B")
        assert self.address(desc, 9, 0, True, 128) == 18
        assert self.address(desc, 9, 1, True, 128) == 128 + 2  # chunk 1 ^ 1
        assert self.address(desc, 64, 0, True, 128) == 8192
        assert self.address(desc, 65, 10, True, 128) == 8192 + 1024 + 256 + 32 + 2

    @pytest.mark.parametrize("mode", ["none", "32B", "64B", "128B"])
    @pytest.mark.parametrize("mn_major", [False, True])
    def test_no_two_elements_share_an_address(self, mode, mn_major):
        if mn_major:
            desc = self.make(0, 16384 if mode != "none" else 128, 1024, mode)
        else:
            desc = self.make(0, 16384, 1024, mode)
        got = descriptors.operand_addresses(desc, 128, 16, 2, mn_major)
        assert len(np.unique(got)) == got.size

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"base_offset": 1}, "base offset"),
            ({"leading_absolute": True}, "absolute"),
            ({"address": 112}, "do not fit"),
            ({"swizzle": "128B_ATOM_32B"}, "not modelled"),
        ],
    )
    def test_refuses(self, changes, message):
        fields = {
            "address": 0, "leading_bytes": 16, "stride_bytes": 1024, "base_offset": 0,
            "swizzle": "128B", "leading_absolute": False,
        }  # fmt: skip
        desc = descriptors.SharedDescriptor(**{**fields, **changes})
        with pytest.raises(ValueError, match=message):
            descriptors.operand_addresses(desc, 64, 16, 2, False)


def idesc(m=128, n=256, d=1, a=1, b=1, extra=0):
    return d << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24 | extra


class TestInstructionDescriptor:
    def test_decodes(self):
        got = descriptors.decode_instruction_descriptor(
            idesc(256, 192, 1, 1, 0, 1 << 14 | 1 << 16), "f16", 2
        )
        assert got == descriptors.InstructionDescriptor(
            "f32", "bf16", "f16", False, True, False, True, 256, 192
        )

    @pytest.mark.parametrize("bit", [0, 1, 2, 3, 6, 23, 29, 30, 31])
    def test_refuses_unused_fields(self, bit):
        with pytest.raises(ValueError, match="instruction descriptor"):
            descriptors.decode_instruction_descriptor(idesc(extra=1 << bit), "f16", 1)

    @pytest.mark.parametrize(
        ("word", "cta_group"),
        [
            (idesc(m=256), 1),
            (idesc(m=64), 2),
            (idesc(m=96), 1),
            (idesc(n=8), 1),
            (idesc(n=0), 1),
            (idesc(n=264), 1),
            (idesc(m=256, n=24), 2),
            (idesc(d=2), 1),
            (idesc(a=2), 1),
            (idesc(b=3), 1),
        ],
    )
    def test_refuses_shapes_and_types(self, word, cta_group):
        with pytest.raises(ValueError, match="expected"):
            descriptors.decode_instruction_descriptor(word, "f16", cta_group)

    def test_refuses_other_kinds(self):
        with pytest.raises(ValueError, match="tf32"):
            descriptors.decode_instruction_descriptor(idesc(), "tf32", 1)

    def test_m_64_takes_n_in_eights(self):
        got = descriptors.decode_instruction_descriptor(idesc(64, 8), "f16", 1)
        assert (got.m, got.n) == (64, 8)


class TestFragments:
    def test_wgmma_accumulator_of_some_threads(self):
        row, column = fragments.wgmma_accumulator(16)
        assert (row[0, 0], column[0, 0]) == (0, 0)
        assert (row[1, 1], column[1, 1]) == (0, 3)
        assert (row[6, 2], column[6, 2]) == (9, 4)
        assert (row[37, 7], column[37, 7]) == (16 + 1 + 8, 8 + 3)

    @pytest.mark.parametrize("n", [8, 24, 256])
    def test_every_element_once(self, n):
        row, column = fragments.wgmma_accumulator(n)
        assert len(np.unique(row * n + column)) == 64 * n

    def test_f16_packs_neighbours(self):
        row, column = fragments.wgmma_accumulator_f16(16)
        assert row.shape == (128, 4, 2)
        assert column[5, 1].tolist() == [2, 3]
        assert row[5, 1].tolist() == [9, 9]

    def test_a_registers(self):
        row, column = fragments.wgmma_a_registers()
        assert (row[33, 0].tolist(), column[33, 0].tolist()) == ([16, 16], [2, 3])
        assert (row[0, 1].tolist(), column[0, 1].tolist()) == ([8, 8], [0, 1])
        assert (row[0, 2].tolist(), column[0, 2].tolist()) == ([0, 0], [8, 9])

    @pytest.mark.parametrize("n", [0, 4, 12, 264])
    def test_refuses_n(self, n):
        with pytest.raises(ValueError, match="wgmma N"):
            fragments.wgmma_accumulator(n)


class TestTensorMemory:
    def element(self, m, n, cta_group, i, j):
        return tuple(int(x[i, j]) for x in tmem.accumulator_layout(m, n, cta_group))

    def test_accumulators(self):
        assert self.element(128, 32, 1, 77, 5) == (0, 77, 5)
        assert self.element(64, 32, 1, 17, 5) == (0, 33, 5)
        assert self.element(64, 32, 1, 63, 31) == (0, 111, 31)
        assert self.element(256, 64, 2, 130, 9) == (1, 2, 9)
        assert self.element(128, 64, 2, 5, 31) == (0, 5, 31)
        assert self.element(128, 64, 2, 70, 40) == (1, 70, 8)

    @pytest.mark.parametrize(
        ("m", "cta_group"), [(64, 1), (128, 1), (128, 2), (256, 2)]
    )
    def test_no_two_elements_share_a_cell(self, m, cta_group):
        cta, lane, column = tmem.accumulator_layout(m, 64, cta_group)
        cells = (cta * 128 + lane) * 512 + column
        assert len(np.unique(cells)) == m * 64
        assert lane.max() < 128
        assert cta.max() == cta_group - 1

    def test_m_64_may_start_in_the_other_half(self):
        _, lane, _ = tmem.accumulator_layout(64, 8, 1, 16)
        assert lane[:, 0].tolist() == [
            q * 32 + 16 + r for q in range(4) for r in range(16)
        ]
        for m, start in ((64, 8), (128, 16)):
            with pytest.raises(ValueError, match="lane of D"):
                tmem.accumulator_layout(m, 8, 1, start)

    def test_refuses_other_m(self):
        with pytest.raises(ValueError, match="accumulator"):
            tmem.accumulator_layout(32, 64, 1)

    def test_operand_rows_of_a_pair(self):
        a, b = tmem.operand_rows(256, 128, 2)
        assert a == [slice(0, 128), slice(128, 256)]
        assert b == [slice(0, 64), slice(64, 128)]

    @pytest.mark.parametrize(
        ("shape", "thread", "register", "lane", "column"),
        [
            ("32x32b", 7, 3, 7, 3),
            ("16x64b", 0, 1, 0, 2),
            ("16x64b", 1, 0, 8, 0),
            ("16x64b", 6, 0, 1, 1),
            ("16x128b", 5, 1, 9, 1),
            ("16x128b", 5, 2, 1, 5),
            ("16x256b", 5, 1, 1, 3),
            ("16x256b", 5, 6, 9, 10),
        ],
    )
    def test_load_images(self, shape, thread, register, lane, column):
        lanes, columns = tmem.load_layout(shape, 8, 6)
        assert lanes[thread, register] == 64 + lane
        assert columns[thread, register] == column

    @pytest.mark.parametrize(
        ("shape", "lanes", "columns_per_repeat"),
        [("32x32b", 32, 1), ("16x64b", 16, 2), ("16x128b", 16, 4), ("16x256b", 16, 8)],
    )
    def test_load_covers_its_image(self, shape, lanes, columns_per_repeat):
        lane, column = tmem.load_layout(shape, 4, 0)
        cells = np.unique(lane * 512 + column)
        assert len(cells) == lane.size == lanes * columns_per_repeat * 4
        assert (lane.max(), column.max()) == (lanes - 1, columns_per_repeat * 4 - 1)

    @pytest.mark.parametrize(
        ("shape", "repeat"), [("16x32bx2", 1), ("32x32b", 3), ("16x256b", 64)]
    )
    def test_refuses_loads(self, shape, repeat):
        with pytest.raises(ValueError, match=r"tcgen05\.ld"):
            tmem.load_layout(shape, repeat, 0)


class TestMultiplyAccumulate:
    def test_exact_on_small_integers(self):
        rng = np.random.default_rng(0)
        a, b = rng.integers(-4, 5, (8, 16)), rng.integers(-4, 5, (24, 16))
        d = rng.integers(-9, 10, (8, 24)).astype(np.float32)
        as_float = (a.astype(np.float32), b.astype(np.float32))
        got = matmul.multiply_accumulate(*as_float, d, "f32")
        assert (got == d + a @ b.T).all()
        assert (matmul.multiply_accumulate(*as_float, None, "f32") == a @ b.T).all()

    def test_f16_rounds_every_step(self):
        one = np.ones((8, 1), np.float32)
        d = np.full((8, 8), 2048, np.float32)
        assert (matmul.multiply_accumulate(one, one, d, "f16") == 2048).all()

    def test_refuses_other_types(self):
        with pytest.raises(ValueError, match="accumulator type"):
            matmul.multiply_accumulate(np.ones((8, 1)), np.ones((8, 1)), None, "s32")
