// Every instruction set against a scalar sum with its own rounding: bit for bit.
#include "runtime/sum.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "runtime/element_type.h"
#include "runtime/float_mode.h"
#include "runtime/sum_kernel.h"

namespace jax_symm {
namespace {

float WidenBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// Nearest-even by comparing the distances to the two neighbours in double.
uint16_t NarrowBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const auto low = static_cast<uint16_t>(bits >> 16);
  if ((bits & 0xFFFF) == 0 || std::isinf(value)) return low;
  const uint32_t rest = bits & 0xFFFF;
  if (rest > 0x8000) return low + 1;
  return rest < 0x8000 ? low : low + (low & 1);
}

float WidenF16(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
uint16_t NarrowF16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }

float Element(const std::vector<char>& data, ElementType type, int64_t i) {
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, data.data() + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data.data() + 2 * i, 2);
  return type == ElementType::kBf16 ? WidenBf16(bits) : WidenF16(bits);
}

uint32_t Bits(float value, ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return NarrowBf16(value);
    case ElementType::kF16:
      return NarrowF16(value);
    case ElementType::kF32:
      return std::bit_cast<uint32_t>(value);
  }
  return 0;
}

bool SameBits(const std::vector<char>& data, ElementType type, int64_t i, float want) {
  uint32_t got = 0;
  std::memcpy(&got, data.data() + i * ElementBytes(type), ElementBytes(type));
  // Which NaN comes out of an addition of NaNs is the processor's choice.
  if (std::isnan(want)) return std::isnan(Element(data, type, i));
  return got == Bits(want, type);
}

std::vector<char> RandomBits(std::mt19937_64& random, size_t bytes) {
  std::vector<char> data(bytes);
  for (char& byte : data) byte = static_cast<char>(random());
  return data;
}

void TestCase(const SumKernelTable& table, ElementType in, ElementType out, size_t num_sources,
              size_t num_outputs, int64_t count, std::mt19937_64& random) {
  const SumKernel kernel = table.kernels[static_cast<int>(in)][static_cast<int>(out)];
  CHECK(kernel != nullptr, ElementName(in), " -> ", ElementName(out));
  const int64_t source_offset = static_cast<int64_t>(random() % 5);
  const int64_t output_offset = static_cast<int64_t>(random() % 3) * 16;
  std::vector<std::vector<char>> sources;
  std::vector<std::vector<char>> outputs;
  for (size_t r = 0; r < num_sources; ++r) {
    sources.push_back(RandomBits(random, (source_offset + count) * ElementBytes(in)));
  }
  const std::vector<char> poison((output_offset + count + 8) * ElementBytes(out), '\x7F');
  outputs.assign(num_outputs, poison);
  std::vector<const void*> source_data;
  std::vector<void*> output_data;
  for (auto& source : sources) source_data.push_back(source.data());
  for (auto& output : outputs) output_data.push_back(output.data());
  {
    const ScopedFloatMode mode(FloatMode::kIeee);
    kernel({source_data.data(), num_sources, output_data.data(), num_outputs, source_offset,
            output_offset, count, random() % 2 == 0});
  }
  for (const auto& output : outputs) {
    for (int64_t i = 0; i < count; ++i) {
      float want = Element(sources[0], in, source_offset + i);
      for (size_t r = 1; r < num_sources; ++r) want += Element(sources[r], in, source_offset + i);
      CHECK(SameBits(output, out, output_offset + i, want), ElementName(in), " -> ",
            ElementName(out), ", ", num_sources, " sources, element ", i, " of ", count,
            ": wanted ", want);
    }
    const size_t before = output_offset * ElementBytes(out);
    const size_t after = (output_offset + count) * ElementBytes(out);
    CHECK(std::memcmp(output.data(), poison.data(), before) == 0);
    CHECK(std::memcmp(output.data() + after, poison.data(), output.size() - after) == 0);
  }
}

void TestTable(const SumKernelTable& table) {
  std::mt19937_64 random(1);
  const std::pair<ElementType, ElementType> types[] = {{ElementType::kBf16, ElementType::kBf16},
                                                       {ElementType::kBf16, ElementType::kF32},
                                                       {ElementType::kF16, ElementType::kF16},
                                                       {ElementType::kF16, ElementType::kF32},
                                                       {ElementType::kF32, ElementType::kF32}};
  for (const auto& [in, out] : types) {
    for (int64_t count = 0; count < 100; ++count) {
      TestCase(table, in, out, 1 + count % 9, 1 + count % 4, count, random);
    }
    TestCase(table, in, out, 8, 8, 4099, random);
  }
}

/// A call must not depend on the mode of the thread that makes it, nor change it.
void TestDenormals() {
  const ScopedFloatMode flush(FloatMode::kFlushDenormals);
  const float tiny = std::bit_cast<float>(uint32_t{1});
  const std::vector<float> source(40, tiny);
  std::vector<float> output(40);
  const void* sources[] = {source.data(), source.data()};
  void* outputs[] = {output.data()};
  Sum({.sources = sources,
       .outputs = outputs,
       .count = 40,
       .in = ElementType::kF32,
       .out = ElementType::kF32});
  for (float value : output) CHECK(std::bit_cast<uint32_t>(value) == 2);
  volatile float denormal = tiny;
  const float flushed = denormal + denormal;
  CHECK(flushed == 0 && std::bit_cast<uint32_t>(flushed) == 0, "the caller's mode was changed");
}

void Main() {
  for (const SumKernelTable* table : RunnableSumKernels()) TestTable(*table);
  CHECK(!CanSum(ElementType::kF32, ElementType::kBf16));
  TestDenormals();
}

}  // namespace
}  // namespace jax_symm

int main() { jax_symm::Main(); }
