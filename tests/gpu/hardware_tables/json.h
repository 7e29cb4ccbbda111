// A JSON writer that is just large enough for the measured tables.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_JSON_H_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_JSON_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace jax_symm::hardware_tables {

// One flat JSON object, printed on one line.
class Object {
 public:
  Object() = default;
  explicit Object(std::string body) : body_(std::move(body)) {}

  Object& Add(const char* key, const std::string& value) { return Raw(key, '"' + value + '"'); }
  Object& Add(const char* key, const char* value) { return Add(key, std::string(value)); }
  Object& Add(const char* key, bool value) { return Raw(key, value ? "true" : "false"); }
  Object& Add(const char* key, uint64_t value) { return Raw(key, std::to_string(value)); }
  Object& Add(const char* key, int value) { return Raw(key, std::to_string(value)); }

  template <typename T>
  Object& Add(const char* key, const std::vector<T>& values) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) {
      text += (i ? "," : "") + std::to_string(values[i]);
    }
    return Raw(key, text + "]");
  }

  // Little-endian 16-bit values as four hexadecimal digits each.
  Object& AddHex(const char* key, const std::vector<uint16_t>& values) {
    static const char* const kDigits = "0123456789abcdef";
    std::string text;
    for (uint16_t value : values) {
      for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
    }
    return Add(key, text);
  }

  std::string Body() const { return body_; }
  std::string Text() const { return "{" + body_ + "}"; }

 private:
  Object& Raw(const char* key, const std::string& text) {
    body_ += (body_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + text;
    return *this;
  }

  std::string body_;
};

// Prints `"name": [object, ...]` with one object a line.
inline void PrintSection(const char* name, const std::vector<Object>& objects, bool last) {
  std::printf("\"%s\": [\n", name);
  for (size_t i = 0; i < objects.size(); ++i) {
    std::printf("%s%s\n", objects[i].Text().c_str(), i + 1 < objects.size() ? "," : "");
  }
  std::printf("]%s\n", last ? "" : ",");
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_JSON_H_
